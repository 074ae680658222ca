package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/gang"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/agent"
)

// reportedGangs keeps what was reported and asked for.
type reportedGangs struct {
	told  []gang.Told
	asked []gang.Ask
}

func (g *reportedGangs) Ask(_ context.Context, ask gang.Ask) (gang.Gang, error) {
	g.asked = append(g.asked, ask)
	return gang.Gang{Ask: ask}, nil
}

func (*reportedGangs) Over(context.Context, string, string) error { return nil }
func (g *reportedGangs) Report(_ context.Context, r gang.Report) ([]gang.Wanted, error) {
	g.told = append(g.told, r.Gangs...)
	return nil, nil
}

// TestAttackAHostSaysOfItsGangsWhatNoAgentDoes: what all say lies in one document, and adds to what attempts cost.
func TestAttackAHostSaysOfItsGangsWhatNoAgentDoes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		told   string
		status int
	}{
		"as agents do": {
			`{"id":"r/t/1","phase":"held","address":"10.0.0.1:7","per_hour_picodollars":1}`, http.StatusOK,
		},
		"a long reason": {`{"id":"r/t/1","phase":"ended","why":"` + strings.Repeat("x", 1<<20) + `"}`, http.StatusOK},
		"a long address": {
			`{"id":"r/t/1","phase":"held","address":"` + strings.Repeat("1", 101) + `"}`, http.StatusBadRequest,
		},
		"a long phase":      {`{"id":"r/t/1","phase":"` + strings.Repeat("h", 101) + `"}`, http.StatusBadRequest},
		"a negative price":  {`{"id":"r/t/1","phase":"held","per_hour_picodollars":-1}`, http.StatusBadRequest},
		"too high":          {`{"id":"r/t/1","per_hour_picodollars":9000000000000000000}`, http.StatusBadRequest},
		"no JSON of a gang": {`7`, http.StatusBadRequest},
	} {
		gangs := &reportedGangs{}
		answer := httptest.NewRecorder()
		request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, reportGangPath,
			strings.NewReader(`{"host":"a","instance":"1","gangs":[`+c.told+`]}`))
		Serving{Artifacts: http.NotFoundHandler()}.WithGangs(gangs).ServeHTTP(answer, request)
		if answer.Code != c.status || len(gangs.told) > 0 != (c.status == http.StatusOK) {
			t.Errorf("%s: got %d, told %d; want %d", name, answer.Code, len(gangs.told), c.status)
		}
		for _, one := range gangs.told {
			if len(one.Why) > mostWhy || one.PerHour > quantity.Money(1) {
				t.Errorf("%s: kept a reason of %d bytes and %s per hour", name, len(one.Why), one.PerHour)
			}
		}
	}
}

// TestAttackAHostHasOthersRunWhatItWasNotGiven: a host that has joined asks for a gang whose other hosts are to run
// another program than its task, or to be more of them.
func TestAttackAHostHasOthersRunWhatItWasNotGiven(t *testing.T) {
	t.Parallel()
	stage := predictor.StageID{App: "app", Build: "1", Name: "train"}
	encode := func(v any) json.RawMessage {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	own := encode(wire.Command{Arguments: []string{"python3", "fit.py"}, Hosts: 3, LeastHosts: 2})
	stored := strings.Repeat("ab", 32)
	key := wire.NewResultKey(stage, true, "2", own)
	base := wire.Given{Run: "own-1", Stage: stage, Task: "train-0", Attempt: 1, At: time.Now(), Command: true}
	given := func(change func(*wire.Given)) wire.Given { g := base; change(&g); return g }
	proofs := map[string]wire.Given{
		"own":     given(func(g *wire.Given) { g.Key = key }),
		"large":   given(func(g *wire.Given) { g.Input, g.CacheVersion = stored, "2" }),
		"unread":  given(func(g *wire.Given) { g.Input = "cd" }),
		"nothing": base,
		"part":    given(func(g *wire.Given) { g.Key, g.Member = key, true }),
		"expired": given(func(g *wire.Given) { g.Key, g.At = key, time.Time{} }),
	}
	var read int
	s := Serving{
		Given: func(_, proof string) (*wire.Given, error) {
			if proof == "before" { // of an agent of a version before proofs
				return nil, nil //nolint:nilnil // as Serving.Given has it
			}
			if given, known := proofs[proof]; known {
				return &given, nil
			}
			return nil, errors.New("it is no proof")
		},
		Payload: func(_ context.Context, digest string) (json.RawMessage, error) {
			if read++; digest != stored {
				return nil, activities.ErrMissing
			}
			return own, nil
		},
		Artifacts: http.NotFoundHandler(), Logger: slog.New(slog.DiscardHandler),
	}
	gangs := &reportedGangs{}
	server := httptest.NewServer(s.WithGangs(gangs))
	t.Cleanup(server.Close)
	a := &asker{base: server.URL, host: "h1", client: server.Client(), life: t.Context(), logger: s.Logger}
	order := wire.GangOrder{
		Workflow: "own-1", Attempt: 1, Command: own,
		Task: wire.Task{Run: "own-1", Stage: stage, ID: "train-0", Command: true, CacheVersion: "2"},
	}
	ordered := func(change func(*wire.GangOrder)) wire.GangOrder { o := order; change(&o); return o }
	for _, c := range []struct {
		name, proof string
		order       any
		status      int
	}{
		{"its own", "own", order, http.StatusOK},
		{"its own, of an input that is an artifact", "large", order, http.StatusOK},
		{"of a child workflow", "own", ordered(func(o *wire.GangOrder) { o.Workflow = "own-1/tune-0" }), http.StatusOK},
		{"without a proof", "", order, http.StatusForbidden},
		{"of an agent that has no proofs", "before", order, http.StatusForbidden},
		{"with a proof of a part", "part", order, http.StatusForbidden},
		{"with a proof too old", "expired", order, http.StatusForbidden},
		{"with a proof of no input", "nothing", order, http.StatusForbidden},
		{"of an input that cannot be read now", "unread", order, http.StatusBadGateway},
		{"nothing that decodes", "own", 7, http.StatusForbidden},
		{"another program", "own", ordered(func(o *wire.GangOrder) {
			o.Command = encode(wire.Command{Arguments: []string{"sh", "-c", "id"}, Hosts: 3, LeastHosts: 2})
		}), http.StatusForbidden},
		{"another program, of an artifact", "large", ordered(func(o *wire.GangOrder) {
			o.Command = encode(wire.Command{Arguments: []string{"sh", "-c", "id"}, Hosts: 3, LeastHosts: 2})
		}), http.StatusForbidden},
		{"other code", "own", ordered(func(o *wire.GangOrder) {
			o.Command = encode(wire.Command{
				Arguments: []string{"python3", "fit.py"}, Hosts: 3, LeastHosts: 2, Code: activities.Ref{Digest: stored},
			})
		}), http.StatusForbidden},
		{"more hosts", "own", ordered(func(o *wire.GangOrder) {
			o.Command = encode(wire.Command{Arguments: []string{"python3", "fit.py"}, Hosts: 64, LeastHosts: 2})
		}), http.StatusForbidden},
		{"what a later version heeds", "own", ordered(func(o *wire.GangOrder) {
			o.Command = json.RawMessage(strings.Replace(string(own), "{", `{"before": ["sh", "-c", "id"],`, 1))
		}), http.StatusForbidden},
		{"another run", "own", ordered(func(o *wire.GangOrder) { o.Task.Run = "victim-1" }), http.StatusForbidden},
		{"another stage", "own", ordered(func(o *wire.GangOrder) { o.Task.Stage.Name = "score" }), http.StatusForbidden},
		{"another task", "own", ordered(func(o *wire.GangOrder) { o.Task.ID = "train-1" }), http.StatusForbidden},
		{"another attempt", "own", ordered(func(o *wire.GangOrder) { o.Attempt = 2 }), http.StatusForbidden},
		{"another workflow", "own", ordered(func(o *wire.GangOrder) { o.Workflow = "victim-1" }), http.StatusForbidden},
	} {
		gangs.asked = nil
		ask := gang.Ask{
			ID: "own-1/train-0/1", Host: "h1", Instance: "1", Least: 60, Most: 60, Order: encode(c.order), Given: []byte("{}"),
		}
		err := a.prove(t.Context(), c.proof, askGangPath, ask, nil)
		refused, _ := errors.AsType[*refusedError](err)
		switch {
		case c.status != http.StatusOK:
			if refused == nil || refused.status != c.status || len(gangs.asked) > 0 {
				t.Errorf("%s: got %v, asked %v; want %d", c.name, err, gangs.asked, c.status)
			}
		case err != nil || len(gangs.asked) != 1:
			t.Errorf("%s: got %v, want that it is asked for", c.name, err)
		default:
			got := gangs.asked[0]
			if got.Least != 2 || got.Most != 3 || !bytes.Equal(got.Given, proofs[c.proof].Encode()) {
				t.Errorf("%s: %d to %d hosts are asked for, of %s; want 2 to 3, of what it was given", c.name, got.Least,
					got.Most, got.Given)
			}
		}
	}
	before := read
	ask := gang.Ask{ID: "own-1/train-0/1", Host: "h1", Instance: "1", Order: encode(order)}
	if err := a.prove(t.Context(), "large", askGangPath, ask, nil); err != nil || read != before {
		t.Errorf("asked again: %v, and the input was read %d times; want once for all", err, read-before)
	}
	if _, err := a.Ask(t.Context(), ask); !errors.Is(err, agent.ErrRefused) {
		t.Errorf("without a proof an agent is told %v, want that it is refused", err)
	}
}
