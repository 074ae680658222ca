package ledgerstore

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/spillway-ml/spillway/activities/ledgerstore/postgrestest"
)

// InPostgres names the variable with the URL of a server in which the tests of this process keep their ledgers; unset,
// they keep them in files and in memory.
const InPostgres = "SPILLWAY_LEDGER_TEST_URL"

// TestTheLedgerIsTheSameInPostgreSQL runs all tests of this package once more, with a schema of a server in the place
// of each file. Those of files are left out.
func TestTheLedgerIsTheSameInPostgreSQL(t *testing.T) {
	t.Parallel()
	if os.Getenv(InPostgres) != "" {
		t.Skip("this is that")
	}
	again(t, postgrestest.Start(t), "-rapid.checks=20") // each has a schema made, four hundred times otherwise
}

// TestTheLedgerInPostgreSQLIsMeasured takes the figures of this package once more, of a server that waits for its disk.
func TestTheLedgerInPostgreSQLIsMeasured(t *testing.T) {
	if os.Getenv("SPILLWAY_MEASURE") != "1" || os.Getenv(InPostgres) != "" {
		t.Skip("measures only with SPILLWAY_MEASURE=1")
	}
	server := postgrestest.Start(t)
	server.Stop()
	server.Restart("fsync=on")
	again(t, server, "-test.run=(Is|Are)Measured$", "-test.v=true")
}

// again runs this package's tests with their ledgers in a server.
func again(t *testing.T, server *postgrestest.Server, arguments ...string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0], append([]string{
		"-test.timeout=30m", fmt.Sprint("-test.v=", testing.Verbose()), fmt.Sprint("-test.short=", testing.Short()),
	}, arguments...)...)
	command.Env = append(os.Environ(), InPostgres+"="+server.URL(""))
	said, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	t.Logf("%s", said)
}

// OfFiles skips a test of what only files do, or of what is the same wherever others keep their ledgers.
func OfFiles(t *testing.T) {
	t.Helper()
	if os.Getenv(InPostgres) != "" {
		t.Skip("not of a ledger in a server")
	}
}

// nameless counts the ledgers that a test keeps nowhere.
var nameless atomic.Int64

// placeOf is where a test keeps what it would keep in a file: the URL of a schema in a server. The same path is the
// same schema, and each empty one another.
func placeOf(path string) string {
	if path == "" {
		path = strconv.FormatInt(nameless.Add(1), 10)
	}
	at, _ := url.Parse(os.Getenv(InPostgres))
	values := at.Query()
	values.Set("search_path", fmt.Sprintf("l%x", sha256.Sum256([]byte(path)))[:20])
	at.RawQuery = values.Encode()
	return at.String()
}

// OpenAnywhere is Open, or in a test that has a server OpenPostgres with a schema for each path.
func OpenAnywhere(ctx context.Context, path string, options *Options) (*Store, error) {
	if os.Getenv(InPostgres) == "" {
		return Open(ctx, path, options)
	}
	at := placeOf(path)
	parsed, _ := url.Parse(at)
	db := ConnectRaw(os.Getenv(InPostgres))
	defer db.Close() //nolint:errcheck // of a test
	if _, err := db.ExecContext(ctx, "CREATE SCHEMA IF NOT EXISTS "+parsed.Query().Get("search_path")); err != nil &&
		!strings.Contains(err.Error(), "23505") { // made by another at the same time
		return nil, err
	}
	return OpenPostgres(ctx, func() (string, error) { return at, nil }, options)
}

// ConnectRaw connects to what a test has kept, without a Store.
func ConnectRaw(at string) *sql.DB {
	config, err := pgx.ParseConfig(at)
	if err != nil {
		panic(err)
	}
	return stdlib.OpenDB(*config)
}

// SizeOf is what the ledger that a test keeps under a path takes, in bytes.
func SizeOf(t *testing.T, path string) (size int64) {
	t.Helper()
	if os.Getenv(InPostgres) == "" {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	db := ConnectRaw(placeOf(path))
	defer db.Close() //nolint:errcheck // it was only read
	if err := db.QueryRowContext(t.Context(), `SELECT SUM(pg_total_relation_size(oid)) FROM pg_class
		WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace`).Scan(&size); err != nil {
		t.Fatal(err)
	}
	return size
}

// OpenRaw opens the database that a test has kept under a path, without a Store.
func OpenRaw(path string) (*sql.DB, error) {
	if os.Getenv(InPostgres) != "" {
		return ConnectRaw(placeOf(path)), nil
	}
	return sql.Open("sqlite", path)
}
