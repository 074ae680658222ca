//go:build linux

package hostscheck_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spillway-ml/spillway/activities/wire"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
	grpccredentials "google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	// everyTemporal is a name that each server of Temporal has in its certificate.
	everyTemporal = "temporal.test"
	// namespace is that of the engine at Temporal, bucket and accessKey what it has at S3, natsUser who it is at NATS.
	namespace, bucket, accessKey, natsUser = "spillway", "artifacts", "spillway-hosts", "engine"
	// nodes is how many servers Temporal and NATS have, each on a host of its own.
	nodes = 3
)

// servers are what an engine finds where it is one of many users: Temporal on PostgreSQL, NATS and S3, over TLS. The
// secrets are of this test alone.
type servers struct {
	t         testing.TB
	authority *authority
	own       pair // by which the engine is known

	database *host
	temporal [nodes]*server
	nats     [nodes]*server
	s3       *host

	databasePassword, natsPassword, secretKey string
}

// server is one of several of a kind.
type server struct {
	*process

	host  *host
	begin func() *process
}

// kill ends it as SIGKILL does.
func (s *server) kill() {
	_ = s.end(syscall.SIGKILL) // its end is an error
}

// again starts it again.
func (s *server) again() { s.process = s.begin() }

// buildServers builds the servers, and looks for PostgreSQL.
func buildServers(t *testing.T) (postgres string) {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(found) == 0 {
		refuse(t, "there is no PostgreSQL in /usr/lib/postgresql (apt-get install postgresql)")
	}
	if _, err := user.Lookup("postgres"); err != nil {
		refuse(t, "there is no user postgres, as whom PostgreSQL runs")
	}
	build(t, ".", "github.com/nats-io/nats-server/v2", "go.temporal.io/server/cmd/server",
		"go.temporal.io/server/cmd/tools/sql")
	build(t, "../s3check", "./gateway")
	return filepath.Dir(found[len(found)-1])
}

// startServers starts all of them, and returns when each can be used.
func startServers(t *testing.T, n *network, a *authority, engine *host) *servers {
	t.Helper()
	postgres := buildServers(t)
	began := time.Now()
	s := &servers{
		t: t, authority: a, databasePassword: rand.Text(), natsPassword: rand.Text(),
		secretKey: rand.Text(), database: n.host("database"), s3: n.host("s3"),
	}
	s.own = s.authority.issue(engine, "engine", day)
	s.startNATS(n)
	s.startS3()
	s.startDatabase(postgres)
	s.startTemporal(n)
	t.Logf("PostgreSQL, %d servers of Temporal, %d of NATS and S3 are ready after %s", nodes, nodes,
		time.Since(began).Round(100*time.Millisecond))
	return s
}

const day = 24 * time.Hour

// startDatabase starts PostgreSQL as the user that its package makes for it: it refuses root.
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
	if err == nil {
		_, err = fmt.Fprintf(hba, "hostssl all all %s0/24 scram-sha-256\n", subnet)
	}
	h.network.do(err, hba.Close())
	h.start("postgres", postgres("postgres", "-D", data, "-c", "listen_addresses="+h.address,
		"-c", "unix_socket_directories=", "-c", "max_connections=300", "-c", "ssl=on",
		"-c", "ssl_cert_file="+certificate.certificate, "-c", "ssl_key_file="+certificate.key)).answers("5432")
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
	}
	for _, one := range s.temporal {
		one.answers("7233")
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

// startNATS starts a cluster of NATS with JetStream, which lets in the engine alone.
func (s *servers) startNATS(n *network) {
	s.t.Helper()
	type m = map[string]any
	var routes []string
	for i := range s.nats {
		s.nats[i] = &server{host: n.host("nats" + strconv.Itoa(i+1))}
		routes = append(routes, "tls://"+s.nats[i].host.address+":6222")
	}
	for _, one := range s.nats {
		h := one.host
		certificate := s.authority.issue(h, "nats", day)
		tls := m{"cert_file": certificate.certificate, "key_file": certificate.key, "ca_file": s.authority.file}
		text, err := json.Marshal(m{ // every JSON is a configuration of NATS
			"server_name": h.name, "listen": h.address + ":4222", "tls": tls, "max_payload": 8 << 20,
			"authorization": m{"user": natsUser, "password": s.natsPassword},
			"jetstream":     m{"store_dir": filepath.Join(h.dir, "store"), "max_mem": 1 << 28, "max_file": 4 << 30},
			"cluster":       m{"name": "test", "listen": h.address + ":6222", "routes": routes, "tls": tls},
			"leafnodes":     m{"listen": h.address + ":7422", "tls": tls},
		})
		if err != nil {
			s.t.Fatal(err)
		}
		file := h.write("nats.conf", text, 0o600)
		one.begin = func() *process {
			return h.start("nats", program{path: filepath.Join(bin, "nats-server"), arguments: []string{"-c", file}})
		}
		one.again()
	}
	for _, one := range s.nats {
		one.answers("4222")
	}
}

// stream opens JetStream of the cluster, from a host of it that stays.
func (s *servers) stream(from *host) jetstream.JetStream {
	s.t.Helper()
	trust := s.authority.trust("", s.own)
	trust.Certificates = nil
	return openStream(s.t, from, strings.Join(s.natsURLs("4222"), ","), nats.Secure(trust),
		nats.UserInfo(natsUser, s.natsPassword))
}

func (s *servers) natsURLs(port string) (urls []string) {
	for _, one := range s.nats {
		urls = append(urls, "tls://"+net.JoinHostPort(one.host.address, port))
	}
	return urls
}

// leader is the server of NATS that leads the loop's stream.
func (s *servers) leader(js jetstream.JetStream) (found *server) {
	s.t.Helper()
	until(s.t, "the loop's stream has a leader", func() bool {
		ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
		defer cancel()
		stream, err := js.Stream(ctx, wire.LoopStream)
		if err != nil || stream.CachedInfo().Cluster == nil {
			return false
		}
		at := slices.IndexFunc(s.nats[:], func(one *server) bool {
			return one.host.name == stream.CachedInfo().Cluster.Leader
		})
		if at >= 0 {
			found = s.nats[at]
		}
		return at >= 0
	})
	return found
}

// startS3 starts the gateway with a bucket.
func (s *servers) startS3() {
	s.t.Helper()
	h := s.s3
	certificate := s.authority.issue(h, "s3", day)
	s.startGateway(program{
		path: filepath.Join(bin, "gateway"),
		arguments: []string{
			filepath.Join(h.dir, "stored"), h.address + ":7070", certificate.certificate, certificate.key,
		},
		environment: []string{"ROOT_ACCESS_KEY=" + accessKey, "ROOT_SECRET_KEY=" + s.secretKey},
	}).answers("7070")
	trust := s.authority.trust("", s.own)
	client := s3.New(s3.Options{
		Region: "us-east-1", BaseEndpoint: aws.String(s.s3URL()), UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(accessKey, s.secretKey, ""),
		HTTPClient:  &http.Client{Transport: &http.Transport{DialContext: h.dial, TLSClientConfig: trust}},
	})
	until(s.t, "the gateway makes a bucket", func() bool {
		_, err := client.CreateBucket(s.t.Context(), &s3.CreateBucketInput{Bucket: aws.String(bucket)})
		return err == nil
	})
}

// startGateway starts the gateway, which ends with its standard input.
func (s *servers) startGateway(p program) *process {
	s.t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = writer.Close() })
	p.input = reader
	defer func() { _ = reader.Close() }() // the gateway has it
	return s.s3.start("gateway", p)
}

func (s *servers) s3URL() string { return "https://" + net.JoinHostPort(s.s3.address, "7070") }

// flags have an engine on a host run on the servers. Environment is what it needs besides: for S3 alone.
func (s *servers) flags(h *host) (flags, environment []string) {
	pass := h.write("nats", []byte(natsUser+":"+s.natsPassword+"\n"), 0o600)
	var hosts strings.Builder
	for _, one := range s.temporal {
		fmt.Fprintf(&hosts, "%s %s\n", one.host.address, everyTemporal)
	}
	h.know(hosts.String())
	flags = []string{
		"--temporal-address", everyTemporal + ":7233", "--temporal-namespace", namespace,
		"--temporal-tls-ca", s.authority.file, "--temporal-tls-certificate", s.own.certificate,
		"--temporal-tls-key", s.own.key,
		"--nats-credentials", pass, "--nats-tls-ca", s.authority.file, "--nats-replicas", strconv.Itoa(nodes),
		"--artifacts", "s3://" + bucket + "/hosts?region=us-east-1&endpoint=" + s.s3URL(),
	}
	for _, url := range s.natsURLs("4222") {
		flags = append(flags, "--nats-url", url)
	}
	for _, url := range s.natsURLs("7422") {
		flags = append(flags, "--nats-leaf-url", url)
	}
	return flags, []string{
		"AWS_ACCESS_KEY_ID=" + accessKey, "AWS_SECRET_ACCESS_KEY=" + s.secretKey, "AWS_EC2_METADATA_DISABLED=true",
		"AWS_CA_BUNDLE=" + s.authority.file,
	}
}
