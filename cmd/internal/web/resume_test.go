package web_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/access/accesstest"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// event is one message of a stream; one without a name only tells how far the stream has got.
type event struct{ id, name, data string }

// eventStream reads one connection.
type eventStream struct{ lines *bufio.Reader }

// read returns the next whole message; false when the connection breaks before its end.
func (s eventStream) read() (e event, whole bool) {
	for {
		line, err := s.lines.ReadString('\n')
		if err != nil {
			return e, false
		}
		switch kind, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": "); kind {
		case "id":
			e.id = value
		case "event":
			e.name = value
		case "data":
			e.data = value
		case "":
			if value == "" && e != (event{}) {
				return e, true
			}
		}
	}
}

func (s eventStream) next(t *testing.T) event {
	t.Helper()
	e, whole := s.read()
	if !whole {
		t.Fatal("the stream broke off")
	}
	return e
}

func openStream(t *testing.T, server http.Handler, query string) eventStream {
	t.Helper()
	listening := httptest.NewServer(server)
	body := connect(t, listening.URL+"/api/v1/stream"+query)
	t.Cleanup(func() {
		_ = body.Close()
		listening.Close()
	})
	return eventStream{bufio.NewReader(body)}
}

// connect opens a stream over a connection of its own.
func connect(t *testing.T, address string) io.ReadCloser {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	//nolint:bodyclose // the caller closes it
	response, err := (&http.Client{Transport: transport}).Do(accesstest.Show(request))
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s: got %s", address, response.Status)
	}
	return closer{response.Body, cancel}
}

type closer struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (c closer) Close() error {
	c.cancel()
	return c.ReadCloser.Close()
}

// TestAStreamThatIsCutAnywhereTellsEverythingOnce cuts a stream at random bytes while the run changes, and connects
// again as a browser does.
func TestAStreamThatIsCutAnywhereTellsEverythingOnce(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 1))
			engine := newEngine(t)
			server := web.New(web.Options{Keys: accesstest.Keys(), Engine: engine, Feed: &engine.Feed})
			server.SetPace(time.Millisecond, time.Second, time.Minute)
			listening := httptest.NewServer(server)
			defer listening.Close()
			const decisions = 300
			stage := predictor.StageID{App: "digits", Build: "0123456789ab", Name: "score"}
			var changing sync.WaitGroup
			defer changing.Wait()
			changing.Go(func() {
				for i := range decisions {
					at := begin.Add(time.Duration(i) * time.Second)
					engine.Decide(predictor.Plan{
						Term: 1, Tick: uint64(i + 1),
						Decisions: []predictor.Decision{{ID: strconv.Itoa(i), Stage: stage, At: at}},
					})
					engine.Apply("digits-1", predictor.Scheduled{Run: "digits-1", Stage: stage, Tasks: 1, At: at})
					if i%10 == 0 {
						time.Sleep(time.Millisecond) // or all would be told in one burst
					}
				}
				engine.Apply("digits-1", predictor.RunEnded{
					Run: "digits-1", State: predictor.RunSucceeded,
					At: begin.Add(time.Hour),
				})
			})
			var got, want []string
			for i := range decisions {
				want = append(want, strconv.Itoa(i))
			}
			var last string
			cuts, resumed := 0, 0
			for ended := false; !ended; cuts++ {
				address := listening.URL + "/api/v1/stream?run=digits-1"
				if last != "" {
					address += "&after=" + last
				}
				body := connect(t, address)
				stream := eventStream{bufio.NewReader(io.LimitReader(body, 500+random.Int64N(30_000)))}
				for first := true; ; first = false {
					e, whole := stream.read()
					if !whole {
						break
					}
					if first && last != "" && e.name != web.StreamReset {
						resumed++
					}
					if e.id != "" {
						last = e.id
					}
					switch e.name {
					case web.StreamReset:
						got = nil
					case web.StreamDecision:
						var decision predictor.Decision
						if err := json.Unmarshal([]byte(e.data), &decision); err != nil {
							t.Fatal(err)
						}
						got = append(got, decision.ID)
					case web.StreamRun:
						var view ledger.RunView
						if err := json.Unmarshal([]byte(e.data), &view); err != nil {
							t.Fatal(err)
						}
						ended = ended || view.State == predictor.RunSucceeded
					}
					if ended {
						break
					}
				}
				if err := body.Close(); err != nil {
					t.Error(err)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("decisions told (-want +got):\n%s", diff)
			}
			t.Logf("%d connections, %d resumed", cuts, resumed)
			if resumed == 0 {
				t.Error("no connection went on where another had ended")
			}
		})
	}
}

func TestAnIDOfAnotherEngineBeginsAnew(t *testing.T) {
	t.Parallel()
	engine := newEngine(t)
	server := web.New(web.Options{Keys: accesstest.Keys(), Engine: engine, Feed: &engine.Feed})
	for _, query := range []string{"", "?after=another-7", "?run=digits-1&after=another-0"} {
		if e := openStream(t, server, query).next(t); e.name != web.StreamReset {
			t.Errorf("%q begins with %+v, want a reset", query, e)
		}
	}
	if status, answer := ask(t, server, "GET", "/api/v1/stream?after=yesterday", "", nil); status != 400 ||
		!strings.Contains(answer, "not the ID") {
		t.Errorf("got %d %s, want what is no ID to be refused", status, answer)
	}
}

func TestAHeartbeatTellsHowFarTheStreamHasGot(t *testing.T) {
	t.Parallel()
	engine := newEngine(t)
	server := web.New(web.Options{Keys: accesstest.Keys(), Engine: engine, Feed: &engine.Feed})
	server.SetPace(time.Millisecond, 5*time.Millisecond, time.Minute)
	stream := openStream(t, server, "?run=digits-1")
	first := ""
	for e := stream.next(t); first == ""; e = stream.next(t) {
		first = e.id
	}
	engine.Apply("another", predictor.RunStarted{Run: "another", Pipeline: "digits", At: begin})
	for {
		if e := stream.next(t); e.id != first {
			break // what concerns others moves it on, so that it is not taken for being behind
		}
	}
}

// TestIdleStreamsCostLittle opens 200 streams that nothing is told to.
func TestIdleStreamsCostLittle(t *testing.T) {
	const streams = 200
	engine := newEngine(t)
	server := web.New(web.Options{Keys: accesstest.Keys(), Engine: engine, Feed: &engine.Feed})
	listening := httptest.NewServer(server)
	defer listening.Close()
	measure := func() (bytes uint64, goroutines int) {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc + stats.StackInuse, runtime.NumGoroutine()
	}
	before, routines := measure()
	for i := range streams {
		connection, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", listening.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = connection.Close() }()
		if _, err := fmt.Fprintf(connection, "GET /api/v1/stream?run=idle-%d HTTP/1.1\r\nHost: %s\r\nAuthorization: "+
			"Bearer %s\r\n\r\n",
			i, connection.RemoteAddr(), accesstest.Keys().Token()); err != nil {
			t.Fatal(err)
		}
	}
	for engine.Feed.Readers() < streams {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond) // all have been told the state and sleep
	after, all := measure()
	each, routinesEach := (float64(after)-float64(before))/streams, float64(all-routines)/streams
	t.Logf("each idle stream takes %.1f KiB and %.1f goroutines", each/1024, routinesEach)
	if each > 64<<10 || routinesEach > 3 {
		t.Errorf("each idle stream takes %.1f KiB and %.1f goroutines, want at most 64 KiB and 3", each/1024, routinesEach)
	}
}

// pipeListener hands out connections that lie in memory and hold nothing: whatever is written waits until it is read.
type pipeListener struct {
	connections chan net.Conn
	closed      chan struct{}
	once        sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case connection := <-l.connections:
		return connection, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// atPort is a connection that came in at a port of this machine.
type atPort struct{ net.Conn }

func (atPort) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7474} }

// TestABrowserThatIsDeadIsNoticed has one reader that vanishes without closing its connection, and one that goes on.
func TestABrowserThatIsDeadIsNoticed(t *testing.T) {
	t.Parallel()
	engine := newEngine(t)
	server := web.New(web.Options{Keys: accesstest.Keys(), Engine: engine, Feed: &engine.Feed})
	server.SetPace(time.Millisecond, 20*time.Millisecond, 100*time.Millisecond)
	listener := &pipeListener{connections: make(chan net.Conn), closed: make(chan struct{})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	dial := func() (net.Conn, eventStream) {
		near, far := net.Pipe()
		listener.connections <- atPort{far}
		if _, err := fmt.Fprintf(near, "GET /api/v1/stream?run=digits-1 HTTP/1.1\r\nHost: %s\r\nAuthorization: "+
			"Bearer %s\r\n\r\n",
			atPort{}.LocalAddr(), accesstest.Keys().Token()); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(near), nil) //nolint:bodyclose // the connection is closed
		if err != nil {
			t.Fatal(err)
		}
		return near, eventStream{bufio.NewReader(response.Body)}
	}
	dead, stream := dial()
	stream.next(t)
	living, stream := dial()
	stream.next(t)
	for engine.Feed.Readers() != 1 { // heartbeats reach nobody at the dead one, and the other reads on
		if _, whole := stream.read(); !whole {
			t.Fatal("the stream that reads was dropped too")
		}
	}
	engine.Apply("digits-1", predictor.RunEnded{
		Run: "digits-1", State: predictor.RunSucceeded,
		At: begin.Add(time.Minute),
	})
	for e := stream.next(t); !strings.Contains(e.data, `"succeeded"`); {
		e = stream.next(t)
	}
	for _, connection := range []net.Conn{dead, living} {
		_ = connection.Close()
	}
	if err := server.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
