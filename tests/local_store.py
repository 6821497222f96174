"""`python local_store.py DIRECTORY ADDRESS PORT`: an S3 server on a directory, for tests.

localbucket 1.2.1, and the one request of S3 clients that it lacks: DeleteObjects. It asks for no
key, so it must listen on loopback.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from contextlib import suppress
from http.server import ThreadingHTTPServer
from pathlib import Path

from localbucket import S3Error, S3Handler


class Handler(S3Handler):
    """Handler of one connection."""

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: an answer per object would fill the disk."""

    def _post_request(self, bucket: str, key: str) -> None:
        if key or "delete" not in self.query:
            super()._post_request(bucket, key)
            return
        result = ET.Element("DeleteResult", xmlns="http://s3.amazonaws.com/doc/2006-03-01/")
        for element in ET.fromstring(self._read_body()).iter():
            if not element.tag.endswith("}Key") and element.tag != "Key":
                continue
            name = element.text or ""
            try:
                path = self._object_path(bucket, name)
                path.unlink(missing_ok=True)
                with suppress(OSError):  # a directory that still has files
                    path.parent.rmdir()
                ET.SubElement(ET.SubElement(result, "Deleted"), "Key").text = name
            except (OSError, S3Error) as error:
                failed = ET.SubElement(result, "Error")
                ET.SubElement(failed, "Key").text = name
                ET.SubElement(failed, "Message").text = str(error)
        self._send_xml(result)


if __name__ == "__main__":
    S3Handler.data_root = Path(sys.argv[1]).resolve()
    ThreadingHTTPServer((sys.argv[2], int(sys.argv[3])), Handler).serve_forever()
