"""Hold infra/ against schemas, policies and linters: `make check-infra`.

Each overlay of infra/kubernetes is built. Kubernetes' own objects are validated for each version
from 1.28 on that kubernetes-validate has. Objects of Trainer, Kueue and Flink's operator are held
against the schemas in their CRDs, which are files below $CLOZE_CRDS (default: ../shared/crds); a
kind without a file is reported as skipped. The work pool's job template is validated as the Job
that it becomes. Nothing is asked of a network.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from kubernetes_validate import utils as kubernetes_validate

INFRA = Path(__file__).resolve().parent
KUBERNETES = INFRA / "kubernetes"
BUILD = INFRA.parent / "build" / "infra"
CRDS = Path(os.environ.get("CLOZE_CRDS") or INFRA.parents[1] / "shared" / "crds")
BIN = Path(sys.executable).parent
OLDEST = "1.28"
COMMON = ("apiVersion", "kind", "metadata")
OWN_GROUPS = ("trainer.kubeflow.org/", "kueue.x-k8s.io/", "flink.apache.org/")
# rules of checkov that do not fit, with the reason
SKIPPED_POLICIES = {
    "CKV_K8S_15": "images have fixed tags, which need not be pulled at each start",
    "CKV_K8S_43": "digests are known where images are pushed; kustomize sets them",
}


def builds() -> dict[str, str]:
    """Return overlay -> its manifests as text, also written to build/infra."""
    if shutil.which("kubectl") is None:
        sys.exit("kubectl is missing, which builds the overlays; install it")
    texts = {}
    BUILD.mkdir(parents=True, exist_ok=True)
    for overlay in sorted((KUBERNETES / "overlays").iterdir()):
        texts[overlay.name] = _run("kubectl", "kustomize", str(overlay))
        (BUILD / f"{overlay.name}.yaml").write_text(texts[overlay.name])
    return texts


def job(template: str) -> dict[str, Any]:
    """Return the Job that the base job template of the work pool makes with its defaults."""
    content = yaml.safe_load(template)
    given = {"name": "run", "command": ["prefect", "flow-run", "execute"], "labels": {}, "env": []}
    fields = content["variables"]["properties"]
    values = {name: field.get("default") for name, field in fields.items()} | given

    def fill(node: Any) -> Any:
        if isinstance(node, dict):
            return {name: fill(value) for name, value in node.items()}
        if isinstance(node, list):
            return [fill(item) for item in node]
        if not isinstance(node, str):
            return node
        whole = re.fullmatch(r"\{\{ (\w+) \}\}", node)
        if whole:
            return values[whole[1]]
        return re.sub(r"\{\{ (\w+) \}\}", lambda match: str(values[match[1]]), node)

    filled: dict[str, Any] = fill(content["job_configuration"]["job_manifest"])
    for name in ("completions", "parallelism"):  # Prefect wants them in the pod, too
        del filled["spec"]["template"]["spec"][name]
    return filled


def crd_schemas() -> dict[tuple[str, str], Any]:
    """Return (apiVersion, kind) -> schema, strict, of the CRDs in `CRDS`."""
    schemas = {}
    for path in sorted(CRDS.rglob("*.y*ml")):
        spec = yaml.load(path.read_text(), yaml.CSafeLoader)["spec"]
        for version in spec["versions"]:
            key = f"{spec['group']}/{version['name']}", spec["names"]["kind"]
            schemas[key] = strict(version["schema"]["openAPIV3Schema"])
    return schemas


def strict(schema: Any) -> Any:
    """Return the schema of a CRD as the API server applies it: unknown fields are errors."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    result = {name: strict(value) for name, value in schema.items()}
    if isinstance(result.get("properties"), dict):
        open_ended = result.get("x-kubernetes-preserve-unknown-fields", False)
        result.setdefault("additionalProperties", open_ended)
    return result


def validate(documents: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Validate manifests by source; return the errors."""
    errors, skipped, schemas = [], set(), crd_schemas()
    known = dict.fromkeys(kubernetes_validate.all_versions())
    versions = [version for version in known if _number(version) >= _number(OLDEST)]
    unique: dict[str, tuple[str, dict[str, Any]]] = {}  # overlays share most objects
    for source, items in documents.items():
        for item in items:
            unique.setdefault(json.dumps(item, sort_keys=True), (source, item))
    for source, item in unique.values():
        name = f"{source}: {item['kind']} {item['metadata'].get('name', '')}"
        key = item["apiVersion"], item["kind"]
        try:
            if not item["apiVersion"].startswith(OWN_GROUPS):
                for version in versions:
                    kubernetes_validate.validate(item, version, strict=True)
            elif key in schemas:
                own = {name: item[name] for name in item if name not in COMMON}
                jsonschema.validate(own, schemas[key])
            else:
                skipped.add("/".join(key))
        except jsonschema.ValidationError as error:
            place = ".".join(map(str, error.absolute_path))
            errors.append(f"{name}: {place}: {error.message[:300]}")
    print(f"{len(unique)} objects for Kubernetes {OLDEST} to {versions[-1]}, {len(errors)} errors")
    for kind in sorted(skipped):
        print(f"skipped: no CRD of {kind} in {CRDS}")
    return errors


def lint() -> None:
    """Run the linters; the first that finds something ends this program with its output."""
    root = INFRA.parent
    files = _run("git", "-C", str(root), "ls-files", "infra", ".ci").split()
    text = [name for name in files if name.endswith((".yaml", ".yml"))]
    shell = [
        name
        for name in files
        if (root / name).read_bytes().startswith((b"#!/bin/", b"#!/usr/bin/env bash"))
    ]
    images = map(str, sorted((INFRA / "images").glob("Containerfile*")))
    _tool("yamllint", "--strict", "--config-file", "infra/yamllint.yaml", *text)
    _tool("shellcheck", *shell)
    _tool("hadolint", "--config", "infra/images/hadolint.yaml", *images)
    schema = ("--builtin-schema", "vendor.compose-spec")
    _tool("check-jsonschema", *schema, "infra/compose.yaml")
    schema = ("--builtin-schema", "vendor.citation-file-format")
    _tool("check-jsonschema", *schema, "CITATION.cff")
    github = INFRA.parent / ".github"
    workflows = map(str, sorted((github / "workflows").glob("*.yml")))
    _tool("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *workflows)
    actions = map(str, sorted((github / "actions").glob("*/action.yml")))
    _tool("check-jsonschema", "--builtin-schema", "vendor.github-actions", *actions)
    forms = map(str, sorted((github / "ISSUE_TEMPLATE").glob("*.yml")))
    _tool("check-jsonschema", "--builtin-schema", "vendor.github-issue-forms", *forms)
    _tool("zizmor", "--offline", "--quiet", ".")
    policies = ("--framework", "kubernetes", "--compact", "--quiet", "--skip-download")
    skipped = ("--skip-check", ",".join(SKIPPED_POLICIES))
    _tool("checkov", *policies, *skipped, "--file", *map(str, sorted(BUILD.glob("*.yaml"))))


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _tool(name: str, *arguments: str) -> None:
    done = subprocess.run([str(BIN / name), *arguments], cwd=INFRA.parent, check=False)
    print(f"{name}: {'passed' if done.returncode == 0 else 'failed'}", flush=True)
    if done.returncode:
        sys.exit(done.returncode)


def main() -> None:
    texts = builds()
    documents = {name: list(yaml.safe_load_all(text)) for name, text in texts.items()}
    documents["trainjob.yaml"] = [yaml.safe_load((KUBERNETES / "trainjob.yaml").read_text())]
    template = job((KUBERNETES / "base" / "job-template.yaml").read_text())
    documents["job-template.yaml"] = [template]
    (BUILD / "flow-run.yaml").write_text(yaml.safe_dump(template))
    errors = validate(documents)
    if errors:
        sys.exit("\n".join(errors))
    lint()


if __name__ == "__main__":
    main()
