package ledgerstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/spillway-ml/spillway/activities/wait"
)

const (
	// leastPostgres is the oldest version that the ledger is tried with, as server_version_num has it.
	leastPostgres = 13_00_00
	// connectWithin is how long the way to a server may take, the greeting included.
	connectWithin = 5 * time.Second
	// startWithin is how long a start waits for a server that cannot be reached: one that starts as well, or that another
	// takes over from.
	startWithin = 10 * time.Second
	// quietMost is for how long what was sent to a server may stay without an answer of its host, and a connection without
	// a sign of it: TCP alone gives up after a quarter of an hour, and who waits for a bill waits with it.
	quietMost = 15 * time.Second
	// mostReaders is how many bills and lists are read at a time.
	mostReaders = 4
)

// server is a database of PostgreSQL.
type server struct {
	where  func() (string, error) // its URL, with a password
	config *pgx.ConnConfig        // of when the store was opened
}

// OpenPostgres opens the ledger in a database of PostgreSQL, 13 or later, and makes its tables in the first schema of
// the search path where there are none. Where returns its URL, as postgres://USER:PASSWORD@HOST:PORT/DATABASE with
// what else libpq takes; it is asked again for each connection, so that a password may change, and nothing
// says more of it than host, user and database. Several servers may have one ledger: one of them writes, the others
// follow.
//
// It fails where the database cannot be reached within ten seconds, lets nobody in, or cannot have the ledger: nobody
// is to find out from a bill that an address was wrong. What fails later is tried again as with Open.
func OpenPostgres(ctx context.Context, where func() (string, error), options *Options) (*Store, error) {
	s := newStore(options)
	config, err := parseURL(where)
	if err != nil {
		return nil, err
	}
	s.server, s.dialect = &server{where: where, config: config}, postgresDialect
	waiting, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	for pause := 200 * time.Millisecond; ; pause *= 2 {
		err = s.openPlace(ctx) // to bring a large ledger to a newer schema may take minutes
		if err == nil || !passing(err) || !wait.For(waiting, pause) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// parseURL reads where a server is. What is wrong with a URL is not repeated: that may be its password.
func parseURL(read func() (string, error)) (*pgx.ConnConfig, error) {
	const form = "it must read postgres://USER:PASSWORD@HOST:PORT/DATABASE, with what is special in them written as %40"
	text, err := read()
	if err != nil {
		return nil, err
	}
	text = strings.TrimSpace(text)
	if at, err := url.Parse(text); err != nil || at.Scheme != "postgres" && at.Scheme != "postgresql" {
		return nil, fmt.Errorf("the URL of the ledger's database cannot be read: %s", form)
	}
	config, err := pgx.ParseConfig(text)
	if err != nil {
		return nil, fmt.Errorf("the URL of the ledger's database has something that is not known: %s; "+
			"what may stand behind it is in https://www.postgresql.org/docs/current/libpq-connect.html", form)
	}
	if at, _ := url.Parse(text); !allNear(config) && !at.Query().Has("sslmode") && os.Getenv("PGSSLMODE") == "" {
		return nil, errors.New("the URL of the ledger's database does not say how its host is known, and a password goes " +
			"there: add ?sslmode=verify-full (with &sslrootcert=FILE for a CA of your own), or sslmode=disable where the way " +
			"there is yours alone")
	}
	config.ConnectTimeout = connectWithin
	if _, named := config.RuntimeParams["application_name"]; !named {
		config.RuntimeParams["application_name"] = "spillway"
	}
	dialer := &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: quietMost / 3, Interval: quietMost / 3, Count: 2,
		},
		Control: endQuiet,
	}
	config.DialFunc = dialer.DialContext
	return config, nil
}

// allNear says whether all hosts that a URL names are this one.
func allNear(config *pgx.ConnConfig) bool {
	return near(config.Host) && !slices.ContainsFunc(config.Fallbacks, func(other *pgconn.FallbackConfig) bool {
		return !near(other.Host)
	})
}

// near says whether a host is this one: a socket, or an address that does not leave it.
func near(host string) bool {
	address := net.ParseIP(host)
	return strings.HasPrefix(host, "/") || host == "localhost" || address != nil && address.IsLoopback()
}

// String names the database without user and password.
func (s *server) String() string {
	host := s.config.Host
	if !strings.HasPrefix(host, "/") {
		host = net.JoinHostPort(host, strconv.Itoa(int(s.config.Port)))
	}
	return fmt.Sprintf("in PostgreSQL at %s, database %s", host, s.config.Database)
}

// connect connects, with a writer and some readers, to a server that can have the ledger.
func (s *server) connect(ctx context.Context) (db, readers *sql.DB, err error) {
	fresh := stdlib.OptionBeforeConnect(func(_ context.Context, config *pgx.ConnConfig) error {
		now, err := parseURL(s.where)
		if err != nil {
			return err
		}
		*config = *now
		return nil
	})
	db, readers = stdlib.OpenDB(*s.config, fresh), stdlib.OpenDB(*s.config, fresh)
	db.SetMaxOpenConns(1)
	readers.SetMaxOpenConns(mostReaders)
	readers.SetConnMaxIdleTime(time.Minute)
	examining, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	if err := s.examine(examining, db); err != nil {
		return nil, nil, errors.Join(err, closeBoth(db, readers))
	}
	return db, readers, nil
}

// examine looks whether the server can have the ledger.
func (s *server) examine(ctx context.Context, db *sql.DB) error {
	version, text := 0, ""
	if err := db.QueryRowContext(ctx, `SELECT current_setting('server_version_num')::int,
		current_setting('server_version')`).Scan(&version, &text); err != nil {
		return err
	}
	if err := checkVersion(version, text); err != nil {
		return err
	}
	encoding := ""
	if err := db.QueryRowContext(ctx, `SELECT current_setting('server_encoding')`).Scan(&encoding); err != nil {
		return err
	}
	if encoding != "UTF8" {
		return fmt.Errorf("%w: it keeps texts as %s; make it with CREATE DATABASE NAME TEMPLATE template0 ENCODING 'UTF8'",
			errUnfit, encoding)
	}
	return nil
}

// checkVersion refuses what the ledger was not tried with.
func checkVersion(number int, text string) error {
	if number < leastPostgres {
		return fmt.Errorf("%w: it is PostgreSQL %s, use %d or later", errUnfit, text, leastPostgres/10_000)
	}
	return nil
}

// errUnfit says that a database cannot have the ledger.
var errUnfit = errors.New("the database cannot have the ledger")

// hints say what to do about what a server says, by its code
// (https://www.postgresql.org/docs/current/errcodes-appendix.html).
var hints = map[string]string{
	"28P01": "correct user and password in the URL",
	"28000": "pg_hba.conf of the server does not let this user in from here: add a line, or correct the URL",
	"3D000": "make it with CREATE DATABASE, or correct its name in the URL",
	"3F000": "make the schema that search_path names (of the user, or in the URL), and GRANT USAGE, CREATE ON it",
	"42501": "let the user make tables: GRANT CREATE, USAGE ON SCHEMA public TO USER, or make it the owner",
	"25006": "it lets nobody write now: name the primary server, or have its keeper end what makes it read-only",
	"53100": "its disk is full: make room there; until then the stream of events keeps what is not written",
	"53300": "it has as many connections as it takes: raise max_connections (a server takes five), or use a pooler",
	"42P07": "something else is in that schema: give the ledger a database of its own, or search_path in the URL",
}

// explained is an error in one line, with what to do about it.
type explained struct {
	error
	text string
}

// Error is the line.
func (e *explained) Error() string { return e.text }

// Unwrap returns what was told of.
func (e *explained) Unwrap() error { return e.error }

// explain adds what to do to what a server has said, or to that none has. Of a host that was tried in several ways the
// last says most.
func explain(err error) error {
	if _, done := errors.AsType[*explained](err); err == nil || done {
		return err
	}
	text := err.Error()
	_, failed := errors.AsType[*pgconn.ConnectError](err)
	if failed {
		text = strings.TrimSpace(text[strings.LastIndex(text, "\n")+1:])
	}
	said, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case ok && hints[said.Code] != "":
		return &explained{err, text + ": " + hints[said.Code]}
	case failed:
		return &explained{err, text + ": is it running, and are host, port and sslmode in the URL right?"}
	default:
		return err
	}
}

// passing says whether an error may be gone in a moment: nobody answers, or who does says that it is not the time.
func passing(err error) bool {
	if said, ok := errors.AsType[*pgconn.PgError](err); ok {
		return strings.HasPrefix(said.Code, "57P") || strings.HasPrefix(said.Code, "53")
	}
	_, failed := errors.AsType[*pgconn.ConnectError](err)
	return failed
}
