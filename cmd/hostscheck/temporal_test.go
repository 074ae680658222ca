//go:build linux

package hostscheck_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
	grpccredentials "google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/durationpb"
)

// startDatabase starts PostgreSQL, as the user that its package makes for it: it refuses root. It has the stores of
// Temporal, and the ledger of the engine.
func (s *servers) startDatabase(programs string) {
	t, h := s.t, s.database
	t.Helper()
	found, err := user.Lookup("postgres")
	if err != nil {
		t.Fatal(err)
	}
	uid, err := strconv.ParseUint(found.Uid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	gid, err := strconv.ParseUint(found.Gid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	as := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	certificate := s.authority.issue(h, "database", day)
	password := h.write("password", []byte(s.databasePassword), 0o600)
	data := filepath.Join(h.dir, "data")
	h.network.do(os.Mkdir(data, 0o700))
	for _, path := range []string{h.dir, certificate.key, password, data} {
		h.network.do(os.Chown(path, int(uid), int(gid)))
	}
	postgres := func(name string, arguments ...string) program {
		return program{path: filepath.Join(programs, name), arguments: arguments, user: as}
	}
	h.must(postgres("initdb", "-D", data, "-U", "temporal", "--auth", "scram-sha-256", "--pwfile", password, "--no-sync",
		"--encoding", "UTF8", "--locale", "C"))
	hba, err := os.OpenFile(filepath.Join(data, "pg_hba.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = fmt.Fprintf(hba, "hostssl all all %s0/24 scram-sha-256\n", subnet)
	h.network.do(err, hba.Close())
	h.start("postgres", postgres("postgres", "-D", data, "-c", "listen_addresses="+h.address,
		"-c", "unix_socket_directories=", "-c", "max_connections=300", "-c", "fsync=off", // this machine keeps its power
		"-c", "ssl=on", "-c", "ssl_cert_file="+certificate.certificate, "-c", "ssl_key_file="+certificate.key,
	)).says("ready to accept connections")
	for database, schema := range map[string]string{
		"temporal": "postgresql/v12/temporal", "temporal_visibility": "postgresql/v12/visibility",
	} {
		for _, step := range [][]string{
			{"create-database"},
			{"setup-schema", "--version", "0.0"},
			{"update-schema", "--schema-name", schema},
		} {
			h.must(program{
				path: filepath.Join(bin, "sql"),
				arguments: append([]string{
					"--endpoint", h.address, "--port", "5432", "--user", "temporal", "--plugin", "postgres12_pgx",
					"--database", database, "--tls", "--tls-ca-file", s.authority.file, "--tls-server-name", h.name,
				}, step...),
				environment: []string{"SQL_PASSWORD=" + s.databasePassword},
			})
		}
	}
	script := h.write("ledger.sql", fmt.Appendf(nil, "create role %s login password '%s';\n"+
		"create database %s owner %s;\n", ledgerUser, s.ledgerPassword, ledgerUser, ledgerUser), 0o600)
	psql := program{
		path: filepath.Join(programs, "psql"), environment: []string{"PGPASSWORD=" + s.databasePassword},
		arguments: []string{
			fmt.Sprintf("postgres://temporal@%s/temporal?sslmode=verify-full&sslrootcert=%s", h.address, s.authority.file),
			"--set", "ON_ERROR_STOP=1", "--quiet", "--file", script,
		},
	}
	h.must(psql)
}

// ledgerURL is where the engine keeps its ledger.
func (s *servers) ledgerURL(password string) string {
	return fmt.Sprintf("postgres://%s:%s@%s/%s?sslmode=verify-full&sslrootcert=%s", ledgerUser, password,
		net.JoinHostPort(s.database.address, "5432"), ledgerUser, s.authority.file)
}

// startTemporal starts the servers of Temporal, each with all of its services, and makes the namespace.
func (s *servers) startTemporal(n *network) {
	s.t.Helper()
	for i := range s.temporal {
		h := n.host("temporal" + strconv.Itoa(i+1))
		certificate := s.authority.issue(h, "temporal", day, everyTemporal)
		text, err := json.Marshal(s.temporalConfig(h, certificate)) // every JSON is a YAML
		if err != nil {
			s.t.Fatal(err)
		}
		file := h.write("temporal.yaml", text, 0o600)
		one := &server{host: h}
		one.begin = func() *process {
			return h.start("temporal", program{
				path: filepath.Join(bin, "server"), arguments: []string{"--config-file", file, "--allow-no-auth", "start"},
			})
		}
		one.again()
		s.temporal[i] = one
		one.answers("7233") // of two that start at once one ends: both would write who the cluster is
	}
	s.makeNamespace()
}

// temporalConfig is that of a server of Temporal, as its documentation has it:
// https://docs.temporal.io/references/configuration
func (s *servers) temporalConfig(h *host, certificate pair) map[string]any {
	type m = map[string]any
	store := func(database string, connections int) m {
		return m{"sql": m{
			"pluginName": "postgres12_pgx", "databaseName": database, "connectProtocol": "tcp",
			"connectAddr": net.JoinHostPort(s.database.address, "5432"), "user": "temporal",
			"password": s.databasePassword, "maxConns": connections,
			"maxIdleConns": connections, "maxConnLifetime": "1h",
			"tls": m{
				"enabled": true, "caFile": s.authority.file, "enableHostVerification": true, "serverName": s.database.name,
			},
		}}
	}
	serves := m{
		"certFile": certificate.certificate, "keyFile": certificate.key, "requireClientAuth": true,
		"clientCaFiles": []string{s.authority.file},
	}
	asks := m{"serverName": everyTemporal, "rootCaFiles": []string{s.authority.file}}
	service := func(port, membership int) m {
		return m{"rpc": m{"grpcPort": port, "membershipPort": membership, "bindOnIP": h.address}}
	}
	return m{
		"log": m{"stdout": true, "level": "warn"},
		"persistence": m{
			"defaultStore": "store", "visibilityStore": "visibility", "numHistoryShards": 16,
			"datastores": m{"store": store("temporal", 20), "visibility": store("temporal_visibility", 5)},
		},
		"global": m{
			"membership": m{"maxJoinDuration": "30s", "broadcastAddress": h.address},
			"tls": m{
				"internode": m{"server": serves, "client": asks},
				"frontend":  m{"server": serves, "client": asks},
				"systemWorker": m{
					"certFile": certificate.certificate, "keyFile": certificate.key, "client": asks,
				},
			},
		},
		"services": m{
			"frontend": service(7233, 6933), "history": service(7234, 6934), "matching": service(7235, 6935),
			"worker": service(7239, 6939),
		},
		"clusterMetadata": m{
			"enableGlobalNamespace": false, "failoverVersionIncrement": 10, "masterClusterName": "active",
			"currentClusterName": "active",
			"clusterInformation": m{"active": m{
				"enabled": true, "initialFailoverVersion": 1, "rpcName": "frontend", "rpcAddress": h.address + ":7233",
			}},
		},
		"dcRedirectionPolicy": m{"policy": "noop"},
	}
}

// makeNamespace makes the engine's namespace, as an operator does.
func (s *servers) makeNamespace() {
	s.t.Helper()
	h := s.temporal[0].host
	connection, err := grpc.NewClient("passthrough:///"+h.address+":7233",
		grpc.WithTransportCredentials(grpccredentials.NewTLS(s.authority.trust(everyTemporal, s.own))),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return h.dial(ctx, "tcp", address)
		}))
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	frontend := workflowservice.NewWorkflowServiceClient(connection)
	until(s.t, "Temporal makes a namespace", func() bool {
		ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
		defer cancel()
		_, err := frontend.RegisterNamespace(ctx, &workflowservice.RegisterNamespaceRequest{
			Namespace: namespace, WorkflowExecutionRetentionPeriod: durationpb.New(30 * day),
		})
		if err != nil && strings.Contains(err.Error(), "already") {
			err = nil
		}
		return err == nil
	})
	until(s.t, "Temporal knows the namespace", func() bool {
		ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
		defer cancel()
		_, err := frontend.ListOpenWorkflowExecutions(ctx, &workflowservice.ListOpenWorkflowExecutionsRequest{
			Namespace: namespace,
		})
		return err == nil
	})
}
