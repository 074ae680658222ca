package app

import (
	"encoding/json"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workflows"
)

// parcel is an input that checks itself.
type parcel struct {
	Weight int `json:"weight"`
}

func (p parcel) Validate() error {
	switch {
	case p.Weight < 0:
		return errors.New("weight is negative: give grams")
	case p.Weight == 13:
		panic("bad luck")
	}
	return nil
}

func TestAWorkerAnswersWhatItsPipelinesSayOfInputs(t *testing.T) {
	t.Parallel()
	send := workflows.NewPipeline("send", func(workflow.Context, parcel) (int, error) { return 0, nil })
	described, err := send.Describe()
	if err != nil || !described.Validates {
		t.Errorf("described as %+v, %v; want that it validates", described, err)
	}
	if described, err := ship.Describe(); err != nil || described.Validates {
		t.Errorf("a pipeline of numbers is described as %+v, %v", described, err)
	}

	questions, asking := io.Pipe()
	answering, answers := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- answerChecks(questions, answers, []Pipeline{ship, send}) }()
	decoder, encoder := json.NewDecoder(answering), json.NewEncoder(asking)
	var ready wire.InputAnswer
	if err := decoder.Decode(&ready); err != nil || ready.ID != 0 {
		t.Fatalf("at first: %+v, %v; want that it reads questions", ready, err)
	}
	for i, c := range []struct{ pipeline, input, want string }{
		{"send", `{"weight":1}`, ""},
		{"send", `{"weight":-1}`, "weight is negative: give grams"},
		{"send", `{"weight":13}`, "its Validate panicked: bad luck"},
		{"send", `{"weight":"much"}`, "decode it as app.parcel: json: cannot unmarshal string into Go struct field " +
			"parcel.weight of type int"},
		{"ship", `5`, ""},
		{"gone", `{}`, ""},
	} {
		if err := encoder.Encode(wire.InputQuestion{
			ID: uint64(i) + 1, Pipeline: c.pipeline,
			Input: json.RawMessage(c.input),
		}); err != nil {
			t.Fatal(err)
		}
		var got wire.InputAnswer
		if err := decoder.Decode(&got); err != nil {
			t.Fatal(err)
		}
		if got.ID != uint64(i)+1 || got.Refusal != c.want {
			t.Errorf("%s of %s: got %+v, want %q", c.pipeline, c.input, got, c.want)
		}
	}
	if err := asking.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("at the end of the questions: %v", err)
	}
}

// naps ends the Validate of napping.
var naps atomic.Pointer[chan struct{}]

// napping is an input whose Validate does not return until naps is closed.
type napping struct{}

func (napping) Validate() error { <-*naps.Load(); return nil }

func TestAValidateThatDoesNotReturnIsARefusal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		over := make(chan struct{})
		defer close(over)
		nap := workflows.NewPipeline("nap", func(workflow.Context, napping) (int, error) { return 0, nil })
		naps.Store(&over)
		why := refusalInTime([]Pipeline{nap}, wire.InputQuestion{ID: 1, Pipeline: "nap", Input: []byte("{}")})
		if why != "its Validate has not returned within 10s" {
			t.Errorf("got %q", why)
		}
	})
}
