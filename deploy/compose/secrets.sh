#!/bin/sh
# Make the passwords of this stack, once, in .env, which only this user can read.
set -eu
cd "$(dirname "$0")"
if [ -e .env ]; then
	echo "there are passwords already: remove .env and the volumes to begin anew" >&2
	exit 1
fi
umask 077
random() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
password=$(random)
cat >.env <<END
POSTGRES_PASSWORD=$password
GRAFANA_PASSWORD=$(random)
LEDGER_URL=postgres://temporal:$password@postgres:5432/spillway?sslmode=disable
END
