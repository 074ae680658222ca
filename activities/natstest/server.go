// Package natstest runs a real NATS server with JetStream for tests.
package natstest

import (
	"crypto/rand"
	"encoding/hex"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/access/natsaccess"
	"github.com/spillway-ml/spillway/activities/wire"
)

// requestWait is how long a request waits that has no deadline of its own: long for a busy machine, and not for ever,
// because some tests stop the server beside one.
const requestWait = 30 * time.Second

// Server is a server in this process that can be stopped and started again on the same files and port. Who gives no
// name may do everything.
type Server struct {
	tb      testing.TB
	dir     string
	port    int
	leaf    []*url.URL // of which servers it is a leaf node; nil for none
	running *server.Server
	users   users
}

// users are who may connect with a name.
type users struct {
	mu    sync.Mutex
	known map[string]user   // guarded by mu
	proxy *natsaccess.Proxy // guarded by mu
}

type user struct {
	password string
	admit    func(*natsaccess.Proxy) (release func(), err error)
	release  func()
}

// Check implements server.Authentication.
func (u *users) Check(client server.ClientAuthentication) bool {
	shown := client.GetOpts()
	if shown.Username == "" {
		return true
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	known, found := u.known[shown.Username]
	if !found || known.password != shown.Password {
		return false
	}
	return u.proxy.Register(client, shown.Username) == nil
}

// Admit lets a build of app in, and returns the URL with which its worker connects. Admitted again, it has another
// password at its next connection.
func (s *Server) Admit(name string, app wire.App) string {
	s.tb.Helper()
	return s.admit(name, func(p *natsaccess.Proxy) (func(), error) { return p.Admit(name, app) })
}

// AdmitHost is Admit for a host that has joined, which shows what Prove returns.
func (s *Server) AdmitHost(host string) string { return s.admitHost(host, true) }

// AdmitUnproven is AdmitHost for a host of a version before proofs.
func (s *Server) AdmitUnproven(host string) string { return s.admitHost(host, false) }

func (s *Server) admitHost(host string, proves bool) string {
	s.tb.Helper()
	return s.admit(wire.HostUserPrefix+host, func(p *natsaccess.Proxy) (func(), error) {
		return p.AdmitHost(host, proves)
	})
}

// Prove is the proof with which a host shows that it was given an attempt.
func (s *Server) Prove(host string, given wire.Given) string {
	return hex.EncodeToString([]byte(host)) + "." + hex.EncodeToString(given.Encode())
}

// given reads a proof: of a host, and not signed, as nobody forges one here.
func given(host, proof string) (given wire.Given, genuine bool) {
	of, text, _ := strings.Cut(proof, ".")
	decoded, err := hex.DecodeString(text)
	if err == nil {
		given, err = wire.DecodeGiven(decoded)
	}
	return given, err == nil && of == hex.EncodeToString([]byte(host))
}

func (s *Server) admit(name string, admit func(*natsaccess.Proxy) (func(), error)) string {
	s.tb.Helper()
	s.users.mu.Lock()
	defer s.users.mu.Unlock()
	release, err := admit(s.users.proxy)
	if err != nil {
		s.tb.Fatal(err)
	}
	if before, admitted := s.users.known[name]; admitted {
		before.release()
	}
	password := rand.Text()
	s.users.known[name] = user{password, admit, release}
	address := url.URL{Scheme: "nats", User: url.UserPassword(name, password), Host: s.running.Addr().String()}
	return address.String()
}

// Dismiss takes back that a build was admitted.
func (s *Server) Dismiss(name string) {
	s.users.mu.Lock()
	gone := s.users.known[name]
	delete(s.users.known, name)
	s.users.mu.Unlock()
	gone.release()
}

// Embedded is the server itself.
func (s *Server) Embedded() *server.Server { return s.running }

// Start returns a server that runs until the test ends.
func Start(tb testing.TB) *Server {
	tb.Helper()
	return StartOn(tb, tb.TempDir())
}

// StartOn returns a server that runs until the test ends on the files of another one that is not running.
func StartOn(tb testing.TB, dir string) *Server {
	tb.Helper()
	s := &Server{tb: tb, dir: dir, port: server.RANDOM_PORT, users: users{known: map[string]user{}}}
	s.Restart()
	tb.Cleanup(s.Stop)
	return s
}

// StartBefore returns a server that keeps nothing, and lets builds in before a cluster, until the test ends.
func StartBefore(tb testing.TB, cluster *Cluster) *Server {
	tb.Helper()
	s := &Server{tb: tb, port: server.RANDOM_PORT, users: users{known: map[string]user{}}}
	for _, n := range cluster.nodes {
		s.leaf = append(s.leaf, &url.URL{
			Scheme: "nats", Host: hostPort(n.LeafPort), User: url.UserPassword(n.User, n.Password),
		})
	}
	s.Restart()
	tb.Cleanup(s.Stop)
	for deadline := time.Now().Add(Patience); s.running.NumLeafNodes() == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatal("the server is no leaf node of the cluster")
		}
	}
	return s
}

// Restart starts a server that was stopped.
func (s *Server) Restart() {
	s.tb.Helper()
	running := s.start()
	for begun := time.Now(); !running.ReadyForConnections(portPatience); running = s.start() {
		if running.Addr() != nil && running.ReadyForConnections(Patience) {
			break
		}
		running.Shutdown()
		running.WaitForShutdown()
		if time.Since(begun) > Patience {
			s.tb.Fatalf("NATS is not ready; the port that it had is %d", s.port)
		}
	}
	proxy := natsaccess.New(running, &natsaccess.Options{Instance: s.instance(), Given: given})
	s.users.mu.Lock()
	s.users.proxy = proxy
	for name, known := range s.users.known {
		var err error
		if known.release, err = known.admit(proxy); err != nil {
			s.tb.Fatal(err)
		}
		s.users.known[name] = known
	}
	s.users.mu.Unlock()
	s.running = running
	s.port = running.Addr().(*net.TCPAddr).Port
}

// instance tells the proxies before a cluster apart.
func (s *Server) instance() string {
	if s.leaf == nil {
		return ""
	}
	return strings.ToLower(rand.Text())
}

// portPatience is for how long a server may have no port. One that is stopped leaves its own to whoever asks the system
// for any, and a server that cannot have it neither tries again nor says so.
const portPatience = 3 * time.Second

func (s *Server) start() *server.Server {
	s.tb.Helper()
	options := &server.Options{
		Host: "127.0.0.1", Port: s.port, JetStream: true, StoreDir: s.dir, NoSigs: true, NoLog: true,
		CustomClientAuthentication: &s.users, JetStreamMaxStore: 8 << 30, JetStreamMaxMemory: 256 << 20,
	}
	if s.leaf != nil {
		natsaccess.Join(options, server.RemoteLeafOpts{URLs: s.leaf})
	}
	running, err := server.NewServer(options)
	if err != nil {
		s.tb.Fatal(err)
	}
	running.Start()
	return running
}

// Stop stops the server; one that is stopped stays so.
func (s *Server) Stop() {
	s.users.mu.Lock()
	s.users.proxy.Close()
	s.users.mu.Unlock()
	s.running.Shutdown()
	s.running.WaitForShutdown()
}

// Connect returns JetStream on a connection of its own, which lasts until the test ends and comes back when the server
// does.
func (s *Server) Connect() jetstream.JetStream {
	s.tb.Helper()
	return s.Dial(s.running.ClientURL())
}

// Dial is Connect to an address, such as that of a user who was admitted, with more options.
func (s *Server) Dial(address string, options ...nats.Option) jetstream.JetStream {
	s.tb.Helper()
	connection, err := nats.Connect(address, append(options, nats.MaxReconnects(-1), nats.Timeout(Patience),
		nats.ReconnectWait(10*time.Millisecond))...)
	if err != nil {
		s.tb.Fatal(err)
	}
	s.tb.Cleanup(connection.Close)
	js, err := jetstream.New(connection, jetstream.WithDefaultTimeout(requestWait))
	if err != nil {
		s.tb.Fatal(err)
	}
	return js
}
