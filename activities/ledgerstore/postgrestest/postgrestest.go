// Package postgrestest runs a real PostgreSQL for tests, of the system's package.
package postgrestest

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

const (
	owner = "spillway"
	// startsWithin is how long a server may take to start on a busy machine.
	startsWithin = 2 * time.Minute
)

// binaries is the directory of the newest PostgreSQL that is installed; empty where there is none.
var binaries = sync.OnceValue(func() string {
	if initdb, err := exec.LookPath("initdb"); err == nil {
		if program, err := filepath.EvalSymlinks(initdb); err == nil {
			return filepath.Dir(program)
		}
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // where Debian puts them
	slices.SortFunc(found, func(a, b string) int { return version(a) - version(b) })
	if len(found) == 0 {
		return ""
	}
	return filepath.Dir(found[len(found)-1])
})

// version is that of /usr/lib/postgresql/VERSION/bin/initdb.
func version(path string) int {
	number, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
	return number
}

// Server is a server of its own, on a socket in a directory of its own and on no port. It ends with its test.
type Server struct {
	tb          testing.TB
	dir, socket string
	as          *syscall.Credential // whoever root starts it as: PostgreSQL refuses root
	running     *exec.Cmd
	ended       chan struct{} // closed once running has ended
}

// Start starts a server. Without PostgreSQL the test skips, or fails where SPILLWAY_TEST_REQUIRE names postgres.
func Start(tb testing.TB) *Server {
	tb.Helper()
	if binaries() == "" {
		if slices.Contains(strings.Split(os.Getenv("SPILLWAY_TEST_REQUIRE"), ","), "postgres") {
			tb.Fatal("PostgreSQL is not installed, and SPILLWAY_TEST_REQUIRE names it")
		}
		tb.Skip("PostgreSQL is not installed; install the package postgresql")
	}
	// The name of a socket has 107 bytes at most, and directories of tests have the names of their tests.
	dir, err := os.MkdirTemp("", "pg") //nolint:usetesting // see above
	if err != nil {
		tb.Fatal(err)
	}
	s := &Server{tb: tb, dir: filepath.Join(dir, "data"), socket: dir}
	tb.Cleanup(func() {
		s.Stop()
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	if os.Geteuid() == 0 {
		s.as = someUser(tb)
		if err := os.Chown(dir, int(s.as.Uid), int(s.as.Gid)); err != nil {
			tb.Fatal(err)
		}
	}
	s.initialize()
	s.Restart()
	return s
}

// initialize makes the server's files. Texts are in the order of a dictionary where this PostgreSQL can (from 15 on),
// since those of users are, and else in that of their bytes.
func (s *Server) initialize() {
	s.tb.Helper()
	usual := []string{
		"--pgdata=" + s.dir, "--no-sync", "--auth=trust", "--username=" + owner, "--encoding=UTF8", "--locale=C.UTF-8",
	}
	if s.program("initdb", append(usual, "--locale-provider=icu", "--icu-locale=en-US")...).Run() == nil {
		return
	}
	if said, err := s.program("initdb", usual...).CombinedOutput(); err != nil {
		s.tb.Fatalf("make a database: %v: %s", err, said)
	}
}

// someUser is who is not root.
func someUser(tb testing.TB) *syscall.Credential {
	tb.Helper()
	for _, name := range []string{"postgres", "nobody"} {
		if found, err := user.Lookup(name); err == nil {
			uid, _ := strconv.ParseUint(found.Uid, 10, 32)
			gid, _ := strconv.ParseUint(found.Gid, 10, 32)
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	tb.Fatal("neither postgres nor nobody is a user here, and PostgreSQL refuses root")
	return nil
}

// program is a program of PostgreSQL that ends with this process.
func (s *Server) program(name string, arguments ...string) *exec.Cmd {
	//nolint:gosec // of the system's package
	command := exec.CommandContext(context.Background(), filepath.Join(binaries(), name), arguments...)
	command.Dir = s.socket
	command.Env = append(slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(variable, "PG") || strings.HasPrefix(variable, "LC_")
	}), "LC_ALL=C.UTF-8", "TZ=UTC")
	command.SysProcAttr = &syscall.SysProcAttr{Credential: s.as}
	endWithParent(command.SysProcAttr)
	return command
}

// Restart starts a server that was stopped, with settings such as default_transaction_read_only=on.
func (s *Server) Restart(settings ...string) {
	s.tb.Helper()
	arguments := []string{
		"-D", s.dir, "-k", s.socket, "-c", "listen_addresses=", "-c", "fsync=off", "-c", "shared_buffers=32MB",
	}
	for _, setting := range settings {
		arguments = append(arguments, "-c", setting)
	}
	var said bytes.Buffer
	s.running = s.program("postgres", arguments...)
	s.running.Stdout, s.running.Stderr = &said, &said
	if err := s.running.Start(); err != nil {
		s.tb.Fatal(err)
	}
	s.ended = make(chan struct{})
	go func(running *exec.Cmd, ended chan struct{}) {
		_ = running.Wait() // Stop decides how it ends
		close(ended)
	}(s.running, s.ended)
	ctx, cancel := context.WithTimeout(context.Background(), startsWithin)
	defer cancel()
	for {
		connection, err := pgx.Connect(ctx, s.URL(""))
		if err == nil {
			if err := connection.Close(ctx); err != nil {
				s.tb.Fatal(err)
			}
			return
		}
		select {
		case <-s.ended:
			s.tb.Fatalf("the server ended at its start: %s", said.String())
		case <-ctx.Done():
			s.tb.Fatalf("the server did not start: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Stop ends the server with its connections; it does nothing where it does not run.
func (s *Server) Stop() { s.end(syscall.SIGINT) }

// Kill ends the server as a power cut would.
func (s *Server) Kill() { s.end(syscall.SIGQUIT) }

func (s *Server) end(signal syscall.Signal) {
	s.tb.Helper()
	if s.running == nil {
		return
	}
	if err := s.running.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.tb.Error(err)
	}
	<-s.ended
	s.running = nil
}

// URL is where a schema of the server is; empty is its usual one.
func (s *Server) URL(schema string) string {
	values := url.Values{"host": {s.socket}}
	if schema != "" {
		values.Set("search_path", schema)
	}
	return (&url.URL{Scheme: "postgres", User: url.User(owner), Path: "/postgres", RawQuery: values.Encode()}).String()
}

// Schema makes a schema of its own and returns its URL.
func (s *Server) Schema(name string) string {
	s.tb.Helper()
	s.Exec("CREATE SCHEMA " + name)
	return s.URL(name)
}

// Exec runs a statement as the server's owner.
func (s *Server) Exec(statement string) {
	s.tb.Helper()
	db := Connect(s.tb, s.URL(""))
	_, err := db.ExecContext(context.Background(), statement)
	if err := errors.Join(err, db.Close()); err != nil {
		s.tb.Fatal(fmt.Errorf("%s: %w", statement, err))
	}
}

// Connect connects to a database; the caller closes it.
func Connect(tb testing.TB, at string) *sql.DB {
	tb.Helper()
	config, err := pgx.ParseConfig(at)
	if err != nil {
		tb.Fatal(err)
	}
	return stdlib.OpenDB(*config)
}

// Guard makes a user who has to show a password.
func (s *Server) Guard(name, password string) {
	s.tb.Helper()
	rules := filepath.Join(s.dir, "pg_hba.conf")
	usual, err := os.ReadFile(rules)
	if err != nil {
		s.tb.Fatal(err)
	}
	if err := os.WriteFile(rules, append([]byte("local all "+name+" scram-sha-256\n"), usual...), 0o600); err != nil {
		s.tb.Fatal(err)
	}
	s.Exec("CREATE ROLE " + name + " LOGIN PASSWORD '" + password + "'")
	s.Exec("SELECT pg_reload_conf()")
}
