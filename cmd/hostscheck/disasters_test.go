//go:build linux

package hostscheck_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"golang.org/x/sys/unix"
)

const (
	// shards of the load take some of a second of a core each; more work than a disaster takes would only be waited for.
	shards, rounds = 40, 3_000_000
	// diskSize is that of the first agent's state: its builds, and room for what it runs.
	diskSize = 768 * quantity.MiB
	// cutOff is for how long an agent is cut off, which is much longer than its lease; databaseCut for how long the
	// database is, and diskFull for how long a disk is full.
	cutOff, databaseCut, diskFull = 60 * time.Second, 10 * time.Second, 20 * time.Second
	// restart is after how long a supervisor starts again what was killed.
	restart = 2 * time.Second
	// brief is how long a certificate is valid that expires in the middle of runs, and in which the engine takes it.
	brief = 20 * time.Second
)

// TestWhatBefallsHostsAndServersChangesNoResult runs the sample pipeline, a chain and a map on two agents and servers
// that exist, looks that they come to what they do on one machine, and then breaks one thing after another in the
// middle of them.
func TestWhatBefallsHostsAndServersChangesNoResult(t *testing.T) {
	need(t)
	want := onOneMachine(t)
	f := newField(t)
	defer f.adopt(t) // what is removed at the end is removed by this test

	t.Run("what cannot be is refused", f.refuses) //nolint:paralleltest // they share the hosts
	f.startEngines(t)
	if !t.Run("nothing", func(t *testing.T) { f.undisturbedly(t, want) }) { //nolint:paralleltest // they share the hosts
		return // there is nothing to compare with
	}
	for _, one := range []disaster{
		{"a process of Temporal is killed", (*field).killTemporal, ""},
		{"the leader of the stream is killed", (*field).killLeader, ""},
		{"the database is cut off for 10 s", (*field).cutDatabaseOff, ""},
		{"an agent is killed with all below it", (*field).killAgent, "agent1"},
		{"an agent is cut off for 60 s", (*field).cutAgentOff, ""},
		{"the disk of an agent is full for 20 s", (*field).fillDisk, ""},
		{"the certificates of the servers expire", (*field).expire, ""},
		{"the leading server is killed", (*field).killLeadingServer, ""},
	} {
		t.Run(one.name, func(t *testing.T) { f.befalls(t, one) }) //nolint:paralleltest // they share the hosts
	}
	t.Run("a model is trained on two hosts", f.trains) //nolint:paralleltest // as above
	f.end(t)
	t.Logf("what each took, beside a load of %s undisturbed:\n%s", tenths(f.undisturbed), strings.Join(f.took, "\n"))
}

// disaster befalls the hosts for as long as strike goes on; what that returns is done when the load has ended.
type disaster struct {
	name   string
	strike func(*field) (after func())
	// kills is the agent that it kills; empty for none.
	kills string
}

// killTemporal kills the process of Temporal that the engine finds first.
func (f *field) killTemporal() func() {
	one := f.servers.temporal[0]
	one.kill()
	return func() {
		one.again()
		one.answers("7233")
	}
}

// killLeader kills the server of NATS that leads the loop's stream.
func (f *field) killLeader() func() {
	leader := f.servers.leader(f.js)
	leader.kill()
	return func() {
		leader.again()
		leader.answers("4222")
	}
}

// cutDatabaseOff pulls the cable of Temporal's database.
func (f *field) cutDatabaseOff() func() {
	f.servers.database.plug(false)
	time.Sleep(databaseCut)
	f.servers.database.plug(true)
	return nil
}

// killLeadingServer kills the engine that leads with all that it has started. The other one leads then, and the killed
// one is started again when the load has ended.
func (f *field) killLeadingServer() func() {
	i := f.leading()
	killed, other := f.engines[i], f.engines[1-i]
	f.stack = other
	struck := time.Now()
	killed.host.killAll()
	<-killed.process.ended
	until(f.t, "the other engine leads", func() bool { return f.leader() == other.url() })
	f.t.Logf("%s led, and %s says that it leads %s after that was killed", killed.host.name, other.host.name,
		tenths(time.Since(struck)))
	return func() {
		killed.process = killed.begin()
		killed.process.says(" is ready\n")
		until(f.t, "the engine that was killed stands by", func() bool { return killed.leader() == other.url() })
		listed := killed.tell("hosts")
		leads := slices.ContainsFunc(strings.Split(listed, "\n"), func(line string) bool {
			return strings.Contains(line, " leads ") && strings.HasSuffix(line, other.url())
		})
		if !leads || !strings.Contains(listed, "stands by (here)") {
			f.t.Errorf("spillway hosts prints at the engine that was killed\n%s", listed)
		}
		f.took = append(f.took, f.plans.wantSucceeded(f.t, f.js, struck))
		f.t.Log(f.took[len(f.took)-1])
	}
}

// killAgent kills an agent with all that it has started, and starts it again.
func (f *field) killAgent() func() {
	f.agents[0].host.killAll()
	<-f.agents[0].ended
	time.Sleep(restart)
	f.agents[0].again()
	return nil
}

// cutAgentOff pulls the cable of an agent: it goes on, and so does the engine, and each is gone for the other.
func (f *field) cutAgentOff() func() {
	f.agents[1].host.plug(false)
	time.Sleep(cutOff)
	f.agents[1].host.plug(true)
	return nil
}

// fillDisk takes what there is on the disk of an agent.
func (f *field) fillDisk() func() {
	filler := fill(f.t, filepath.Join(f.agents[0].host.dir, "state"))
	time.Sleep(diskFull)
	if err := os.Remove(filler); err != nil {
		f.t.Fatal(err)
	}
	return nil
}

// expire has the certificates of the engines' ports expire, which they show then, and an agent start meanwhile, which
// says so and ends; started again when the certificates are renewed, it joins.
func (f *field) expire() func() {
	ends := time.Now().Add(brief)
	for _, h := range f.at {
		f.certify(h, time.Until(ends))
	}
	show := func(what string, holds func(shown *x509.Certificate) bool) {
		for _, h := range f.at { // each looks once a second
			until(f.t, h.name+" shows "+what, func() bool {
				shown, err := f.shown(h)
				return err == nil && holds(shown)
			})
		}
	}
	show("the certificate that expires", func(shown *x509.Certificate) bool { return !shown.NotAfter.After(ends) })
	time.Sleep(time.Until(ends.Add(time.Second)))
	one := f.agents[0]
	if err := one.end(interrupt); err != nil {
		f.t.Errorf("the agent ended with %v\n%s", err, one.printed())
	}
	one.process = one.begin(false)
	one.says("expired")
	until(f.t, "an agent that cannot join ends", one.hasEnded)
	renewed := time.Now()
	for _, h := range f.at {
		f.certify(h, day)
	}
	show("the renewed certificate", func(shown *x509.Certificate) bool { return shown.NotAfter.After(ends) })
	one.again()
	f.t.Logf("the agent had joined %s after the certificates were renewed", tenths(time.Since(renewed)))
	return nil
}

// shown is the certificate that the port of a host shows, whatever it is worth.
func (f *field) shown(h *host) (*x509.Certificate, error) {
	connection, err := h.dial(f.t.Context(), "tcp", net.JoinHostPort(h.address, port))
	if err != nil {
		return nil, err
	}
	defer func() { _ = connection.Close() }()
	client := tls.Client(connection, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // it is looked at only
	if err := client.HandshakeContext(f.t.Context()); err != nil {
		return nil, err
	}
	return client.ConnectionState().PeerCertificates[0], nil
}

// disk mounts a small file system.
func disk(t *testing.T, at string) {
	t.Helper()
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", at, "tmpfs", 0, fmt.Sprintf("size=%d,mode=700", diskSize)); err != nil {
		t.Fatalf("mount a file system of %s: %v", diskSize, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// fill takes what a file system has left, and returns the file that does.
func fill(tb testing.TB, dir string) string {
	tb.Helper()
	path := filepath.Join(dir, "filler")
	file, err := os.Create(path)
	if err != nil {
		tb.Fatal(err)
	}
	block := make([]byte, 1<<16)
	for err == nil {
		_, err = file.Write(block)
		if errors.Is(err, syscall.ENOSPC) && len(block) > 1 {
			block, err = block[:1], nil
		}
	}
	if err := file.Close(); err != nil {
		tb.Fatal(err)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		tb.Fatal(err)
	}
	return path
}
