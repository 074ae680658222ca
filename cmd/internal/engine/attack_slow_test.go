package engine_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestAttackEveryPortWithClientsThatDoNotEnd comes to every port of an engine at work with what somebody may send who
// has no credential: a header that does not end, and a body that trickles. Each is given up, on all ports of whatever
// protocol, also where one is opened anew.
func TestAttackEveryPortWithClientsThatDoNotEnd(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/net/tcp"); err != nil {
		t.Skipf("needs /proc: %v", err)
	}
	e := (&testEngine{t: t, state: t.TempDir(), temp: temporary(t)}).start(os.Args[0], buildApp(t, 0), "--no-ui=false",
		"--listen", "127.0.0.1:0")
	run := e.publish("fan", "work", map[string]int{"shards": 200, "milliseconds": 100})
	var ports []string
	e.until("functions and the pool are at work", func() bool {
		ports = e.listens()
		return len(ports) > 5
	})
	// Ten seconds are for a header, thirty for the next byte of a body, and two minutes for all of one.
	const held = 150 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), held)
	defer cancel()
	var attacks sync.WaitGroup
	for _, port := range ports {
		for name, attack := range map[string]struct {
			begin string
			more  string // again and again, every five seconds
		}{
			"a header that does not end": {"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", "X-More: 1\r\n"},
			"half a header":              {"GET / HTTP/1.1\r\nHost: 127.0", ""},
			"a body that trickles": {
				"POST /api/v1/events HTTP/1.1\r\nHost: " + port + "\r\nContent-Type: application/json\r\n" +
					"Content-Length: 900\r\n\r\n{",
				" ",
			},
			"a body of the functions that trickles": {
				"POST /2015-03-31/functions HTTP/1.1\r\nHost: " + port + "\r\nContent-Length: 900\r\n\r\n{", " ",
			},
		} {
			attacks.Go(func() {
				ended, err := holdOn(ctx, port, attack.begin, attack.more)
				if err != nil && !strings.Contains(err.Error(), "refused") { // a port of a process that has ended
					t.Errorf("%s at %s: %v", name, port, err)
				}
				if err == nil && !ended {
					t.Errorf("%s at %s: it is held for %s", name, port, held)
				}
			})
		}
	}
	attacks.Wait()
	e.wait(run, patience)
}

// holdOn sends what begins a request and then more, and says whether the other side ended the connection.
func holdOn(ctx context.Context, address, begin, more string) (ended bool, err error) {
	connection, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return false, err
	}
	defer func() { _ = connection.Close() }()
	if _, err := io.WriteString(connection, begin); err != nil {
		return true, nil // it is closed already
	}
	stop := context.AfterFunc(ctx, func() { _ = connection.SetReadDeadline(time.Now()) })
	defer stop()
	var sending sync.WaitGroup
	defer sending.Wait()
	over, end := context.WithCancel(ctx)
	defer end()
	sending.Go(func() {
		tick := time.NewTicker(5 * time.Second)
		defer tick.Stop()
		for more != "" {
			select {
			case <-over.Done():
				return
			case <-tick.C:
				if _, err := io.WriteString(connection, more); err != nil {
					return
				}
			}
		}
	})
	_, err = io.Copy(io.Discard, connection)
	return !errors.Is(err, os.ErrDeadlineExceeded), nil
}
