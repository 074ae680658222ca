package natstest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// nodeVariable holds the node that a process is to be.
const nodeVariable = "SPILLWAY_TEST_NATS_NODE"

// node is one server of a cluster, in a process of its own.
type node struct {
	Name, Dir                   string
	Port, ClusterPort, LeafPort int
	Routes                      []int
	User, Password              string // of whom the server lets in; empty for everybody
}

// Main makes the process a node of a cluster where StartCluster has started it for that, and returns otherwise. A
// TestMain of a package that uses StartCluster calls it first.
func Main() {
	text := os.Getenv(nodeVariable)
	if text == "" {
		return
	}
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, "node of a NATS cluster:", err)
		os.Exit(1)
	}
	var n node
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		fail(err)
	}
	options := &server.Options{
		ServerName: n.Name, Host: loopback, Port: n.Port, NoSigs: true,
		JetStream: true, StoreDir: n.Dir, JetStreamMaxStore: 1 << 40, JetStreamMaxMemory: 1 << 30, MaxPayload: 8 << 20,
		Cluster:  server.ClusterOpts{Name: "test", Host: loopback, Port: n.ClusterPort},
		LeafNode: server.LeafNodeOpts{Host: loopback, Port: n.LeafPort},
		Username: n.User, Password: n.Password,
		// leaf nodes reach JetStream: see natsaccess.Join
		JsAccDefaultDomain: map[string]string{server.DEFAULT_GLOBAL_ACCOUNT: ""},
	}
	for _, port := range n.Routes {
		options.Routes = append(options.Routes, &url.URL{Scheme: "nats", Host: hostPort(port)})
	}
	s, err := server.NewServer(options)
	if err != nil {
		fail(err)
	}
	s.Start()
	go func() { // the end of the test ends the node, however it ends
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}()
	s.WaitForShutdown()
	os.Exit(0)
}

const loopback = "127.0.0.1"

// leaderWait is between two looks whether a cluster has a leader.
const leaderWait = 500 * time.Millisecond

func hostPort(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }

// Cluster is a cluster of three servers with JetStream, each in a process of its own, that ends with the test.
type Cluster struct {
	tb    testing.TB
	nodes []node
	run   []*exec.Cmd // nil where a node was killed
}

// ClusterOptions says how a cluster differs. The zero value lets everybody in.
type ClusterOptions struct {
	// User and Password are of whom it lets in, if not everybody.
	User, Password string
}

// StartCluster starts a cluster and returns once its JetStream answers. Main must be called by the TestMain of the
// package.
func StartCluster(tb testing.TB, options ClusterOptions) *Cluster {
	tb.Helper()
	const servers = 3
	c := &Cluster{tb: tb, nodes: make([]node, servers), run: make([]*exec.Cmd, servers)}
	dir := tb.TempDir()
	ports := freePorts(tb, 3*servers)
	for i := range c.nodes {
		c.nodes[i] = node{
			Name: "n" + strconv.Itoa(i), Dir: filepath.Join(dir, strconv.Itoa(i)),
			Port: ports[3*i], ClusterPort: ports[3*i+1], LeafPort: ports[3*i+2],
			User: options.User, Password: options.Password,
		}
		for j := range c.nodes {
			c.nodes[i].Routes = append(c.nodes[i].Routes, ports[3*j+1])
		}
	}
	for i := range c.nodes {
		c.Start(i)
	}
	js := c.Connect()
	deadline := time.Now().Add(time.Minute)
	for {
		// Nobody answers what is asked before there is a leader, also once there is one.
		asking, cancel := context.WithTimeout(tb.Context(), leaderWait)
		_, err := js.AccountInfo(asking)
		cancel()
		if err == nil {
			return c
		} else if time.Now().After(deadline) {
			tb.Fatalf("JetStream of the cluster does not answer: %v", err)
		}
	}
}

// freePorts returns ports that were free just now.
func freePorts(tb testing.TB, count int) (ports []int) {
	tb.Helper()
	for range count {
		listener, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", hostPort(0))
		if err != nil {
			tb.Fatal(err)
		}
		defer func() { _ = listener.Close() }()
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

// Start starts a node that does not run.
func (c *Cluster) Start(i int) {
	c.tb.Helper()
	encoded, err := json.Marshal(c.nodes[i])
	if err != nil {
		c.tb.Fatal(err)
	}
	command := exec.Command(os.Args[0]) //nolint:noctx // it ends with the test
	command.Env = append(os.Environ(), nodeVariable+"="+string(encoded))
	command.Stderr = os.Stderr
	if _, err := command.StdinPipe(); err != nil {
		c.tb.Fatal(err)
	}
	if err := command.Start(); err != nil {
		c.tb.Fatal(err)
	}
	c.run[i] = command
	c.tb.Cleanup(func() {
		if c.run[i] == command {
			c.Kill(i)
		}
	})
}

// Kill kills a node, as SIGKILL does.
func (c *Cluster) Kill(i int) {
	if c.run[i] != nil {
		_ = c.run[i].Process.Kill()
		_ = c.run[i].Wait()
		c.run[i] = nil
	}
}

// URLs are those of all nodes.
func (c *Cluster) URLs() (urls []string) {
	for _, n := range c.nodes {
		urls = append(urls, "nats://"+hostPort(n.Port))
	}
	return urls
}

// LeafURLs are where the nodes take leaf nodes.
func (c *Cluster) LeafURLs() (urls []string) {
	for _, n := range c.nodes {
		urls = append(urls, "nats://"+hostPort(n.LeafPort))
	}
	return urls
}

// Connect connects as whoever is let in, and waits for the first node.
func (c *Cluster) Connect() jetstream.JetStream {
	c.tb.Helper()
	options := []nats.Option{
		nats.MaxReconnects(-1), nats.ReconnectWait(50 * time.Millisecond), nats.RetryOnFailedConnect(true),
		nats.UserInfo(c.nodes[0].User, c.nodes[0].Password),
	}
	connection, err := nats.Connect(c.URLs()[0]+","+c.URLs()[1]+","+c.URLs()[2], options...)
	if err != nil {
		c.tb.Fatal(err)
	}
	c.tb.Cleanup(connection.Close)
	js, err := jetstream.New(connection, jetstream.WithDefaultTimeout(requestWait))
	if err != nil {
		c.tb.Fatal(err)
	}
	return js
}

// Leader is the number of the node that leads a stream.
func (c *Cluster) Leader(js jetstream.JetStream, stream string) int {
	c.tb.Helper()
	found, err := js.Stream(c.tb.Context(), stream)
	if err != nil {
		c.tb.Fatal(err)
	}
	info := found.CachedInfo()
	for i, n := range c.nodes {
		if info.Cluster != nil && info.Cluster.Leader == n.Name {
			return i
		}
	}
	c.tb.Fatalf("stream %s has no leader: %+v", stream, info.Cluster)
	return 0
}
