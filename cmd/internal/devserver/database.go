package devserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/metrics"
	"go.temporal.io/server/common/persistence/sql"
	"go.temporal.io/server/common/persistence/sql/sqlplugin"
	sqliteplugin "go.temporal.io/server/common/persistence/sql/sqlplugin/sqlite"
	"go.temporal.io/server/common/resolver"
	sqliteschema "go.temporal.io/server/schema/sqlite"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/spillway-ml/spillway/activities/wait"
)

const (
	// shards is the number of Temporal's history shards. It is written into a new database, and an existing one keeps its
	// own for ever, so it must not be changed. One shard costs 80 ms from start to result where four cost 18 ms.
	shards = 4
	// cluster is the name of the one Temporal cluster; it too is written into the database.
	cluster = "active"
	// schemaName is the row of the table schema_version that says which schema a database was made with.
	schemaName    = "temporal"
	schemaVersion = sqliteschema.Version + "+" + sqliteschema.VisibilityVersion
)

// database is Temporal's SQLite file.
type database struct {
	path string
	cfg  *config.SQL
}

// newDatabase describes the database in the state directory dir.
//
// The write-ahead log makes a killed process lose nothing. Its synchronous=normal flushes at checkpoints only, so after
// a power cut the file is whole but may lack the last transactions; synchronous=full flushes at each commit
// (https://sqlite.org/pragma.html). More than one connection brings storms of SQLITE_BUSY, since SQLite has one writer
// at a time.
func newDatabase(dir string, syncAlways bool) *database {
	path := filepath.Join(dir, "temporal.db")
	synchronous := "normal"
	if syncAlways {
		synchronous = "full"
	}
	return &database{path: path, cfg: &config.SQL{
		PluginName: sqliteplugin.PluginName,
		// The plugin makes a URI of it, in which a question mark of the path, say, must be escaped.
		DatabaseName: (&url.URL{Path: path}).EscapedPath(),
		MaxConns:     1,
		MaxIdleConns: 1,
		ConnectAttributes: map[string]string{
			"mode":         "rwc",
			"journal_mode": "wal",
			"synchronous":  synchronous,
			"busy_timeout": "10000", // milliseconds, for someone who looks into the file with a tool
			// Bytes: after a burst the log is cut to this, and does not stay as long as it was.
			"journal_size_limit": "16777216",
			// What runs that are no longer kept have taken can be given back; see giveBack. It counts for a new file only.
			"auto_vacuum": "incremental",
		},
	}}
}

// prepare makes the schema and the namespace, where they are missing.
func (d *database) prepare() error {
	if err := d.keepPrivate(); err != nil {
		return fmt.Errorf("prepare %s: %w", d.path, err)
	}
	if err := d.exclusively(d.prepareSchema); err != nil {
		return fmt.Errorf("prepare %s: %w", d.path, err)
	}
	if _, err := os.Stat(d.path); err != nil {
		return fmt.Errorf("prepare %s: the file was removed while this process had it open; start the process again: %w",
			d.path, err)
	}
	ns, err := sqliteschema.NewNamespaceConfig(cluster, Namespace, false, nil)
	if err != nil {
		return fmt.Errorf("prepare %s: %w", d.path, err)
	}
	ns.Detail.Config.Retention = durationpb.New(Retention)
	if err := sqliteschema.CreateNamespaces(d.cfg, ns); err != nil {
		return fmt.Errorf("prepare %s: %w", d.path, err)
	}
	return nil
}

// keepPrivate makes the file, where it is missing, and lets nobody but its owner read it and what lies beside it;
// SQLite gives what it makes beside the file the rights of the file. Earlier builds left them to the umask.
func (d *database) keepPrivate() error {
	file, err := os.OpenFile(d.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Chmod(d.path+suffix, 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// exclusively calls f with the database's only connection.
func (d *database) exclusively(f func(sqlplugin.AdminDB) error) error {
	db, err := sql.NewSQLAdminDB(sqlplugin.DbKindUnknown, d.cfg, resolver.NewNoopResolver(), log.NewNoopLogger(),
		metrics.NoopMetricsHandler)
	if err != nil {
		return fmt.Errorf("open it: %w; if it is damaged, move it away or choose another state directory with --state", err)
	}
	return errors.Join(f(db), db.Close())
}

// prepareSchema makes the schema of an empty database and checks that of another. The schema of a new database is one
// transaction, so that a process killed on the way leaves an empty database behind and not half a schema.
func (d *database) prepareSchema(db sqlplugin.AdminDB) error {
	tables, err := db.ListTables("")
	if err != nil {
		return fmt.Errorf("list the tables: %w", err)
	}
	if len(tables) > 0 {
		return checkSchema(db, tables)
	}
	if err := db.Exec("BEGIN IMMEDIATE"); err != nil {
		return fmt.Errorf("begin to make the schema: %w", err)
	}
	if err := makeSchema(db); err != nil {
		return errors.Join(fmt.Errorf("make the schema: %w", err), db.Exec("ROLLBACK"))
	}
	return nil
}

func makeSchema(db sqlplugin.AdminDB) error {
	if err := db.CreateSchemaVersionTables(); err != nil {
		return err
	}
	if err := db.UpdateSchemaVersion(schemaName, schemaVersion, schemaVersion); err != nil {
		return err
	}
	if err := sqliteschema.SetupSchemaOnDB(db); err != nil {
		return err
	}
	return db.Exec("COMMIT")
}

// checkSchema refuses a database that this build's Temporal would misread.
func checkSchema(db sqlplugin.AdminDB, tables []string) error {
	if !slices.Contains(tables, "schema_version") {
		return errors.New("the file is not a database of this program; move it away or choose another state directory " +
			"with --state")
	}
	version, err := db.ReadSchemaVersion(schemaName)
	if err != nil {
		return fmt.Errorf("read the schema's version: %w", err)
	}
	if version != schemaVersion {
		return fmt.Errorf("it was made with schema %s and this build needs %s; use the build that made it, or choose "+
			"another state directory with --state",
			version, schemaVersion)
	}
	return nil
}

const (
	// giveBackEvery and giveBackPages are how often pages that hold nothing are given back, and how many at a time: 4 MiB
	// a minute. Nobody can use the database meanwhile, for some milliseconds.
	giveBackEvery = time.Minute
	giveBackPages = 1024
)

// giveBack gives back pages that hold nothing at the end of the file, until ctx ends. What is written meanwhile uses
// others: pages are only left over when more is deleted than written. A file that was made before 2026-11-23 keeps its
// size, and what is written fills it again.
func (d *database) giveBack(ctx context.Context, logger *slog.Logger) {
	for wait.For(ctx, giveBackEvery) {
		if err := d.exclusively(vacuum); err != nil {
			logger.WarnContext(ctx, "the database of Temporal gives back no room", "error", err)
		}
	}
}

// vacuum gives back some pages (https://sqlite.org/pragma.html#pragma_incremental_vacuum).
func vacuum(db sqlplugin.AdminDB) error {
	return db.Exec(fmt.Sprintf("PRAGMA incremental_vacuum(%d)", giveBackPages))
}

// checkpoint moves the write-ahead log into the file, so that the file of a closed server is complete by itself.
func (d *database) checkpoint() error {
	err := d.exclusively(func(db sqlplugin.AdminDB) error { return db.Exec("PRAGMA wal_checkpoint(TRUNCATE)") })
	if err != nil {
		return fmt.Errorf("checkpoint %s: %w", d.path, err)
	}
	return nil
}
