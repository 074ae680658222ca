#!/bin/sh
# Make the database of the ledger beside those of Temporal, when PostgreSQL starts for the first time.
set -eu
psql --username "$POSTGRES_USER" --dbname postgres --command 'CREATE DATABASE spillway'
