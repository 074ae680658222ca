package web

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/access/accesstest"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// oneRun is an engine with one run, for streams.
type oneRun struct {
	Engine
	view      ledger.RunView
	decisions []predictor.Decision
}

func (e oneRun) Run(_ context.Context, run string) (ledger.RunView, error) {
	if run != e.view.Run {
		return ledger.RunView{}, NotFound("", "no run %s", run)
	}
	return e.view, nil
}

func (e oneRun) Runs(context.Context, RunQuery) (ledger.Page, error) {
	return ledger.Page{Runs: []ledger.RunView{e.view}}, nil
}

func (e oneRun) Decisions(context.Context, DecisionQuery) ([]predictor.Decision, error) {
	return e.decisions, nil
}

func (e oneRun) Plan(context.Context) (predictor.Plan, error) {
	return predictor.Plan{Term: 1, Tick: 1}, nil
}

var begun = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

func (e oneRun) Alerts(context.Context, int) ([]alerting.Alert, error) { return nil, nil }

var shared = predictor.StageID{App: "digits", Build: "0123456789ab", Name: "score"}

func streaming(t *testing.T, p pace) (server *Server, feed *Feed, base string) {
	t.Helper()
	feed = &Feed{}
	engine := oneRun{
		view:      ledger.RunView{Run: "digits-1", App: shared.App, Build: shared.Build, State: predictor.RunRunning},
		decisions: []predictor.Decision{{ID: "early", Stage: shared}},
	}
	server = New(Options{Keys: accesstest.Keys(), Engine: engine, Feed: feed})
	server.pace = p
	listening := httptest.NewServer(server)
	t.Cleanup(listening.Close)
	return server, feed, listening.URL
}

// open returns the lines of a stream.
func open(t *testing.T, url string) (lines *bufio.Reader, end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	response, err := (&http.Client{Transport: transport}).Do(accesstest.Show(request)) //nolint:bodyclose // end closes it
	if err != nil {
		t.Fatal(err)
	}
	return bufio.NewReader(response.Body), func() {
		cancel()
		_ = response.Body.Close()
		transport.CloseIdleConnections()
	}
}

// next returns the name and the data of the next message; comments have the name "comment".
func next(t *testing.T, lines *bufio.Reader) (name, data string) {
	t.Helper()
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("stream ended: %v", err)
		}
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "event: "):
			name = strings.TrimPrefix(line, "event: ")
		case strings.HasPrefix(line, "data: "):
			data = strings.TrimPrefix(line, "data: ")
		case strings.HasPrefix(line, ":"):
			name = "comment"
		case line == "" && name != "":
			return name, data
		}
	}
}

func readers(feed *Feed) int {
	feed.mutex.Lock()
	defer feed.mutex.Unlock()
	count := 0
	for _, readers := range feed.readers {
		count += len(readers)
	}
	return count
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 500 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("still not after 5 s: %s", what)
}

func TestAStreamTellsTheStateFirstAndThenWhatConcernsTheRun(t *testing.T) {
	t.Parallel()
	_, feed, base := streaming(t, pace{gap: time.Millisecond, heartbeat: time.Minute, stall: time.Minute})
	lines, end := open(t, base+"/api/v1/stream?run=digits-1")
	defer end()
	for _, want := range []string{StreamReset, StreamDecision, StreamRun, StreamPlan} {
		if name, data := next(t, lines); name != want {
			t.Fatalf("got %s %s, want %s first", name, data, want)
		}
	}
	other := shared
	other.Build = "ffffffffffff"
	for _, decision := range []predictor.Decision{
		{ID: "early", Stage: shared},                       // told already
		{ID: "other build", Stage: other},                  // not ours
		{ID: "other run", Stage: shared, Run: "digits-2"},  // not ours
		{ID: "shared", Stage: shared},                      // ours: a stage of our build
		{ID: "own window", Stage: shared, Run: "digits-1"}, // ours
	} {
		feed.Decided(decision)
	}
	for _, want := range []string{"shared", "own window"} {
		name, data := next(t, lines)
		var decision predictor.Decision
		if err := json.Unmarshal([]byte(data), &decision); err != nil || name != StreamDecision || decision.ID != want {
			t.Fatalf("got %s %s (%v), want decision %q", name, data, err, want)
		}
	}
}

func TestChangesOfABurstAreToldOnce(t *testing.T) {
	t.Parallel()
	_, feed, base := streaming(t, pace{gap: 50 * time.Millisecond, heartbeat: time.Minute, stall: time.Minute})
	lines, end := open(t, base+"/api/v1/stream?run=digits-1")
	defer end()
	for range 4 { // reset, run, decision, plan
		next(t, lines)
	}
	for range 1000 {
		feed.RunChanged("digits-1")
		feed.RunChanged("digits-2")
	}
	feed.Planned(predictor.Plan{Term: 1, Tick: 2, Decisions: []predictor.Decision{{ID: "last"}}}) // told after all runs
	runs := 0
	for {
		name, _ := next(t, lines)
		if name == StreamPlan {
			break
		}
		runs++
	}
	if runs < 1 || runs > 20 {
		t.Errorf("1000 changes were told %d times, want few", runs)
	}
}

func TestAStreamWithoutRunTellsOfAll(t *testing.T) {
	t.Parallel()
	_, feed, base := streaming(t, pace{gap: time.Millisecond, heartbeat: time.Minute, stall: time.Minute})
	lines, end := open(t, base+"/api/v1/stream")
	defer end()
	for _, want := range []string{StreamReset, StreamRun, StreamPlan} {
		if name, _ := next(t, lines); name != want {
			t.Fatalf("got %s, want %s", name, want)
		}
	}
	feed.Planned(predictor.Plan{Term: 1, Tick: 2, Decisions: []predictor.Decision{{ID: "x"}}})
	if name, data := next(t, lines); name != StreamPlan || strings.Contains(data, "decisions") {
		t.Errorf("got %s %s, want a plan without its decisions", name, data)
	}
}

func TestARunThatIsNotKnownYetIsWaitedForWithHeartbeats(t *testing.T) {
	t.Parallel()
	_, _, base := streaming(t, pace{gap: time.Millisecond, heartbeat: 5 * time.Millisecond, stall: time.Minute})
	lines, end := open(t, base+"/api/v1/stream?run=not-yet")
	defer end()
	for _, want := range []string{StreamReset, StreamPlan} {
		if name, _ := next(t, lines); name != want {
			t.Fatalf("got %s, want %s", name, want)
		}
	}
	for range 3 {
		if name, _ := next(t, lines); name != "comment" {
			t.Errorf("got %s, want a heartbeat", name)
		}
	}
}

func TestAStalledReaderIsDropped(t *testing.T) {
	t.Parallel()
	_, feed, base := streaming(t, pace{gap: 0, heartbeat: time.Minute, stall: 50 * time.Millisecond})
	connection, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	if err := connection.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(connection, "GET /api/v1/stream HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n\r\n",
		connection.RemoteAddr(), accesstest.Keys().Token()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the reader joined", func() bool { return readers(feed) == 1 })
	reason := strings.Repeat("much to say ", 10_000)
	eventually(t, "the stalled reader was dropped", func() bool {
		feed.Decided(predictor.Decision{ID: "x", Reason: reason})
		return readers(feed) == 0
	})
}

func TestAReaderThatLeavesIsForgotten(t *testing.T) {
	t.Parallel()
	_, feed, base := streaming(t, usualPace())
	lines, end := open(t, base+"/api/v1/stream")
	next(t, lines)
	if got := readers(feed); got != 1 {
		t.Errorf("got %d readers, want 1", got)
	}
	end()
	if _, err := io.Copy(io.Discard, lines); err == nil {
		t.Log("the stream had ended in good order")
	}
	eventually(t, "the reader was forgotten", func() bool { return readers(feed) == 0 })
}

func TestAReaderThatIsTooFarBehindIsTold(t *testing.T) {
	t.Parallel()
	var feed Feed
	r := feed.join("")
	defer r.leave()
	for i := range feedEntries {
		feed.Decided(predictor.Decision{ID: strconv.Itoa(i)})
	}
	mark := feed.mark(0)
	if next := r.take(begun, 0); next.lost || len(next.changes) != feedEntries || next.changes[0].id != "0" {
		t.Errorf("got %d changes, lost %t; want all %d", len(next.changes), next.lost, feedEntries)
	}
	if next := r.take(begun, 0); next.lost || len(next.changes) != 0 || next.wait != 0 {
		t.Errorf("taken twice: %+v", next)
	}
	other := feed.join("")
	defer other.leave()
	if !other.resume(mark) {
		t.Error("what is remembered whole is not resumed")
	}
	feed.Decided(predictor.Decision{ID: "one too many"})
	if next := other.take(begun, 0); !next.lost {
		t.Errorf("got %d changes, want to be told that one was forgotten", len(next.changes))
	}
	if other.resume(mark) {
		t.Error("what was forgotten is resumed")
	}
}

func TestTheEndOfARunIsToldAfterWhatCameBeforeIt(t *testing.T) {
	t.Parallel()
	const run = "digits-1"
	feed := &Feed{}
	server := New(Options{
		Keys:   accesstest.Keys(),
		Engine: oneRun{view: ledger.RunView{Run: run, State: predictor.RunSucceeded}}, Feed: feed,
	})
	reader := feed.join(run)
	defer reader.leave()
	recorder := httptest.NewRecorder()
	told := &teller{server: server, reader: reader, out: newEventWriter(recorder, time.Minute)}
	feed.RunChanged(run)
	first := reader.take(begun, 0)
	feed.Decided(predictor.Decision{ID: "last", Run: run}) // and then the run ends, before the first change was told
	feed.RunChanged(run)
	for _, next := range []taken{first, reader.take(begun, 0)} {
		for _, c := range next.changes {
			if err := told.tellChange(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := told.out.flush(); err != nil {
		t.Fatal(err)
	}
	text := recorder.Body.String()
	if decided, ended := strings.Index(text, "event: decision"),
		strings.Index(text, "event: run"); decided < 0 || ended < decided || strings.Count(text, "event: run") != 1 {
		t.Errorf("got %s\nwant the decision and then the run, once", text)
	}
}
