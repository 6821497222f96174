#!/bin/sh
# sh entrypoint.sh COMMAND…: run COMMAND with the secrets of the stack in its environment.
#
# A secret is a file in /run/secrets, which only its container can read. Prefect, MLflow and the S3 clients read
# variables, so this script makes those variables; they are in no compose file and no image. Files that a service
# was not given are skipped.
set -eu
secrets=${SECRETS_DIR:-/run/secrets}
user=${CLOZE_USER:-cloze}

secret() {
    test -r "$secrets/$1" && cat "$secrets/$1"
}

if password=$(secret postgres_password); then
    PGHOST=${POSTGRES_ADDRESS%:*} PGPORT=${POSTGRES_ADDRESS#*:}
    export PGHOST PGPORT PGUSER=cloze PGPASSWORD="$password"
    export PREFECT_API_DATABASE_CONNECTION_URL="postgresql+asyncpg://cloze:$password@$PGHOST:$PGPORT/prefect"
    export MLFLOW_BACKEND_STORE_URI="postgresql://cloze:$password@$PGHOST:$PGPORT/mlflow"
fi
if password=$(secret prefect_password); then
    export PREFECT_SERVER_API_AUTH_STRING="$user:$password" PREFECT_API_AUTH_STRING="$user:$password"
fi
if password=$(secret mlflow_password); then
    export MLFLOW_TRACKING_USERNAME="$user" MLFLOW_TRACKING_PASSWORD="$password"
    if [ -n "${MLFLOW_AUTH_CONFIG_PATH:-}" ]; then # MLflow's server itself
        export MLFLOW_FLASK_SERVER_SECRET_KEY="$password"
        umask 077
        cat >"$MLFLOW_AUTH_CONFIG_PATH" <<END
[mlflow]
default_permission = EDIT
database_uri = postgresql://cloze:$PGPASSWORD@$PGHOST:$PGPORT/mlflow_auth
admin_username = $user
admin_password = $password
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
END
    fi
fi
if key=$(secret store_secret_key); then
    export AWS_ACCESS_KEY_ID="$user" AWS_SECRET_ACCESS_KEY="$key"
fi
if secret=$(secret pool_secret); then
    export CLOZE_POOL_SECRET="$secret"
fi
exec "$@"
