package trigger

import (
	"errors"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/activities/wire"
)

func TestAnIDThatIsTakenWithAnotherInputIsRefused(t *testing.T) {
	t.Parallel()
	s := newStack(t, digits())
	publish := func(id, input string) (run string, err error) {
		_, run, err = s.Publish(t.Context(), "digits", id, []byte(input), nil, wire.RunOptions{})
		return run, err
	}
	if _, err := publish("e1", `{"epochs":1,"name":"x"}`); err != nil {
		t.Fatal(err)
	}
	s.settled()
	for _, same := range []string{`{"epochs":1,"name":"x"}`, " {\"name\": \"x\",\n\"epochs\": 1} "} {
		if run, err := publish("e1", same); err != nil || run != "digits-e1" {
			t.Errorf("the same input again: run %q, %v", run, err)
		}
	}
	for name, other := range map[string]string{"another value": `{"epochs":2,"name":"x"}`, "none": ""} {
		_, err := publish("e1", other)
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), `"e1" is taken`) {
			t.Errorf("%s: %v, want that the ID is taken", name, err)
		}
	}

	// An event that waits for its run has none that could be asked.
	s.mem.set(func(m *memory) { m.down = true })
	if _, err := publish("waits", `{"epochs":1}`); err != nil {
		t.Fatal(err)
	}
	if _, err := publish("waits", `{"epochs":1}`); err != nil {
		t.Errorf("the same input while the event waits: %v", err)
	}
	if _, err := publish("waits", `{"epochs":2}`); !errors.Is(err, ErrRefused) {
		t.Errorf("another input while the event waits: %v, want that the ID is taken", err)
	}
	s.mem.set(func(m *memory) { m.down = false })
	s.settled()

	// Whoever publishes by NATS is told by a dead letter.
	s.publish("events.digits", `{"epochs":2}`, wire.IDHeader, "e1")
	s.publish("events.digits", `{"name":"x","epochs":1}`, wire.IDHeader, "e1")
	s.settled()
	if reasons := s.reasons(); len(reasons) != 1 || !strings.Contains(reasons[0], `"e1" is taken`) {
		t.Errorf("dead letters: %q, want one that says that the ID is taken", reasons)
	}
	if names := s.mem.names(); len(names) != 2 {
		t.Errorf("runs %q, want two", names)
	}
}

// TestAnIDThatIsTakenAtOneOfSeveralPipelinesIsRefused publishes what two pipelines would take, of which the second has
// a run of that ID already: the first must not start alone.
func TestAnIDThatIsTakenAtOneOfSeveralPipelinesIsRefused(t *testing.T) {
	t.Parallel()
	s := newStack(t, open("first"), open("second"))
	for _, pipeline := range []string{"first", "second"} {
		if _, err := s.Bind(t.Context(), wire.Binding{Pipeline: pipeline, Subject: "events.both.*"}); err != nil {
			t.Fatal(err)
		}
	}
	publish := func(to, id, input string) (run string, err error) {
		_, run, err = s.Publish(t.Context(), to, id, []byte(input), nil, wire.RunOptions{})
		return run, err
	}
	if run, err := publish("second", "e1", `{"n":1}`); err != nil || run != "second-e1" {
		t.Fatalf("run %q, %v", run, err)
	}
	s.settled()
	if _, err := publish("first", "e1", `{"n":2}`); err != nil { // of its own: runs of two pipelines may share an ID
		t.Error(err)
	}
	s.settled()
	_, err := publish("events.both.x", "e1", `{"n":2}`)
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "second-e1") {
		t.Errorf("got %v, want that run second-e1 has the ID", err)
	}
	if run, err := publish("events.both.x", "e2", `{"n":2}`); err != nil || run != "first-e2" {
		t.Errorf("with another ID: run %q, %v", run, err)
	}
	s.settled()
	if names := s.mem.names(); len(names) != 4 || len(s.reasons()) != 0 {
		t.Errorf("runs %q and dead letters %q, want two of each pipeline and none", names, s.reasons())
	}
}

func TestEqualInputsHaveOneDigest(t *testing.T) {
	t.Parallel()
	for a, b := range map[string]string{`{}`: ` { } `, `{"a":1,"b":[2]}`: `{"b": [2], "a": 1}`, `"é"`: `"\u00e9"`} {
		if inputDigest([]byte(a)) != inputDigest([]byte(b)) {
			t.Errorf("%s and %s are two", a, b)
		}
	}
	for a, b := range map[string]string{`{}`: `[]`, `9007199254740993`: `9007199254740992`, `1`: `"1"`, `[1,2]`: `[2,1]`} {
		if inputDigest([]byte(a)) == inputDigest([]byte(b)) {
			t.Errorf("%s and %s are one", a, b)
		}
	}
}

func TestAScheduleWhoseInputThePipelinesCodeRefusesIsNotBound(t *testing.T) {
	t.Parallel()
	s := idle(t, newJetStream(t), newMemory())
	target := digits()
	target.Pipeline.Validates = true
	if err := s.SetTargets(t.Context(), []Target{target}); err != nil {
		t.Fatal(err)
	}
	s.mem.check = func(start Start) error {
		switch string(start.Input) {
		case `{"epochs":-1}`:
			return Refuse("epochs must not be negative")
		case `{"epochs":7}`:
			return errAway
		default:
			return nil
		}
	}
	for input, taken := range map[string]bool{`{"epochs":-1}`: false, `{"epochs":1}`: true, `{"epochs":7}`: true} {
		binding := wire.Binding{Pipeline: "digits", Subject: "data.new", Schedule: "0 3 * * *", Input: []byte(input)}
		_, err := s.Bind(t.Context(), binding)
		if taken && err != nil {
			t.Errorf("%s: %v", input, err)
		}
		if !taken && (!errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "must not be negative")) {
			t.Errorf("%s: %v, want that it is refused with the reason", input, err)
		}
	}
	if bounds := s.Bindings(); len(bounds) != 3 {
		t.Errorf("%d bindings, want that of the pipeline and two", len(bounds))
	}
}

func TestAnInputIsCheckedWithoutARun(t *testing.T) {
	t.Parallel()
	s := idle(t, newJetStream(t), newMemory())
	target := digits()
	target.Pipeline.Validates = true
	if err := s.SetTargets(t.Context(), []Target{target}); err != nil {
		t.Fatal(err)
	}
	s.mem.check = func(start Start) error {
		switch {
		case start.App != target.App || start.Build != target.Build:
			return Refuse("another build is asked")
		case string(start.Input) == `{"epochs":-1}`:
			return Refuse("epochs must not be negative")
		case string(start.Input) == `{"epochs":7}`:
			return errAway
		default:
			return nil
		}
	}
	for input, want := range map[string]string{
		`{"epochs":1}`: "", `{"epochs":7}`: "", `{"epochs":-1}`: "must not be negative",
		`[1]`: "does not fit pipeline digits", `{"epoch":1}`: "it may have epochs", `{`: "not JSON",
	} {
		err := s.CheckInput(t.Context(), "digits", []byte(input))
		if want == "" && err != nil || want != "" && (!errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", input, err, want)
		}
	}
	if err := s.CheckInput(t.Context(), "other", []byte("[1]")); err != nil {
		t.Errorf("of a pipeline that is not served: %v", err)
	}
}
