//go:build linux

package hostscheck_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
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
)

const (
	// everyTemporal is a name that each server of Temporal has in its certificate.
	everyTemporal = "temporal.test"
	// namespace is that of the engine at Temporal, bucket and accessKey what it has at S3, natsUser who it is at NATS, and
	// ledgerUser at PostgreSQL.
	namespace, bucket, accessKey, natsUser, ledgerUser = "spillway", "artifacts", "spillway-hosts", "engine", "spillway"
	// nodes is how many servers Temporal and NATS have, each on a host of its own.
	nodes = 3
)

// servers are what an engine finds where it is one of many users: Temporal on PostgreSQL, PostgreSQL, NATS and S3, over
// TLS. The secrets are of this test alone.
type servers struct {
	t         testing.TB
	authority *authority
	own       pair // by which the engine is known

	database *host
	temporal [nodes]*server
	nats     [nodes]*server
	s3       *host

	databasePassword, ledgerPassword, natsPassword, secretKey string
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

// prepareServers builds the servers, and looks for PostgreSQL.
func prepareServers(t *testing.T) (postgres string) {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(found) == 0 {
		refuse(t, "there is no PostgreSQL in /usr/lib/postgresql (apt-get install postgresql)")
	}
	if _, err := user.Lookup("postgres"); err != nil {
		refuse(t, "there is no user postgres, as whom PostgreSQL runs")
	}
	buildServers(t, ".", "github.com/nats-io/nats-server/v2", "go.temporal.io/server/cmd/server",
		"go.temporal.io/server/cmd/tools/sql")
	buildServers(t, "../s3check", "./gateway")
	return filepath.Dir(found[len(found)-1])
}

// startServers starts all of them, and returns when each can be used.
func startServers(t *testing.T, n *network, a *authority, engine *host) *servers {
	t.Helper()
	postgres := prepareServers(t)
	began := time.Now()
	s := &servers{
		t: t, authority: a, databasePassword: rand.Text(), ledgerPassword: rand.Text(), natsPassword: rand.Text(),
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
			"jetstream":     m{"store_dir": filepath.Join(h.dir, "store"), "max_mem": 1 << 28, "max_file": 16 << 30},
			"cluster":       m{"name": "test", "listen": h.address + ":6222", "routes": routes, "tls": tls},
			"leafnodes":     m{"listen": h.address + ":7422", "tls": tls}, "default_js_domain": m{"$G": ""},
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
	users := h.write("users/users.json", fmt.Appendf(nil, `{"accessAccounts": {"stranger": {"access": "stranger", `+
		`"secret": %q, "role": "user"}}}`, s.secretKey), 0o600)
	s.startGateway(program{
		path: filepath.Join(bin, "gateway"),
		arguments: []string{
			filepath.Join(h.dir, "stored"), h.address + ":7070", certificate.certificate, certificate.key,
		},
		environment: []string{
			"ROOT_ACCESS_KEY=" + accessKey, "ROOT_SECRET_KEY=" + s.secretKey, "USERS=" + filepath.Dir(users),
		},
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

// location is where artifacts are, in a bucket of a server.
func (s *servers) location(bucket, server string) string {
	return "s3://" + bucket + "/hosts?region=us-east-1&endpoint=" + server
}

// stranger is known at S3, and has no rights to the bucket.
func (s *servers) stranger() []string {
	return []string{"AWS_ACCESS_KEY_ID=stranger", "AWS_SECRET_ACCESS_KEY=" + s.secretKey}
}

func (s *servers) s3URL() string { return "https://" + net.JoinHostPort(s.s3.address, "7070") }

// settings are a configuration file, as it is read.
type settings map[string]any

// settings have an engine run on the servers, on each of some hosts, which then know Temporal by its name. The files
// that they name are in dir.
func (s *servers) settings(dir string, engines ...*host) settings {
	s.t.Helper()
	var temporal strings.Builder
	for _, one := range s.temporal {
		fmt.Fprintf(&temporal, "%s %s\n", one.host.address, everyTemporal)
	}
	for _, h := range engines {
		h.know(temporal.String())
	}
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			s.t.Fatal(err)
		}
		return path
	}
	return settings{
		"temporal-address": everyTemporal + ":7233", "temporal-namespace": namespace,
		"temporal-tls-ca": s.authority.file, "temporal-tls-certificate": s.own.certificate,
		"temporal-tls-key": s.own.key,
		"nats-url":         s.natsURLs("4222"), "nats-leaf-url": s.natsURLs("7422"), "nats-replicas": nodes,
		"nats-credentials": file("nats", natsUser+":"+s.natsPassword), "nats-tls-ca": s.authority.file,
		"artifacts":       s.location(bucket, s.s3URL()),
		"ledger-url-file": file("ledger", s.ledgerURL(s.ledgerPassword)),
	}
}

// but are the settings with some changed; nil leaves one out.
func (c settings) but(changed settings) settings {
	all := maps.Clone(c)
	for key, value := range changed {
		if all[key] = value; value == nil {
			delete(all, key)
		}
	}
	return all
}

// write writes the settings into a file of the host, and returns its path.
func (c settings) write(h *host, name string) string {
	h.t.Helper()
	text, err := json.MarshalIndent(c, "", "  ") // every JSON is a YAML
	if err != nil {
		h.t.Fatal(err)
	}
	return h.write(name, text, 0o600)
}

// identity is what an engine knows of S3, by its environment: as AWS's own programs do.
func (s *servers) identity() []string {
	return []string{
		"AWS_ACCESS_KEY_ID=" + accessKey, "AWS_SECRET_ACCESS_KEY=" + s.secretKey, "AWS_EC2_METADATA_DISABLED=true",
		"AWS_CA_BUNDLE=" + s.authority.file,
	}
}
