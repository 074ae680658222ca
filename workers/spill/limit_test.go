package spill

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/awslambda"
	"github.com/spillway-ml/spillway/activities/exchange"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/spillwaytest"
)

// regressionInput says how long a regression is trained, and how long computing a part of a round takes at least, as it
// does for a larger model.
type regressionInput struct {
	Rounds       int `json:"rounds"`
	Milliseconds int `json:"milliseconds"`
}

// regression fits a line through eight dimensions by gradient descent with momentum. Its state has the loss of every
// round so far.
type regression struct {
	of                regressionInput
	weights, momentum [8]float32
	losses            []float32
}

// sample is one of 96 points, the same in every process.
func sample(i int) (x [8]float32, y float32) {
	r := rand.New(rand.NewPCG(uint64(i), 1))
	for j := range x {
		x[j] = float32(r.NormFloat64())
		y += x[j] * float32(j-3)
	}
	return x, y + 0.1*float32(r.NormFloat64())
}

// Part is the gradient over a part of the points, and their mean loss.
func (m *regression) Part(_ context.Context, _, part, parts int) (workflows.Part, error) {
	end := time.Now().Add(time.Duration(m.of.Milliseconds) * time.Millisecond)
	from, to := 96*part/parts, 96*(part+1)/parts
	values := make([]float32, len(m.weights)+1)
	for i := from; i < to; i++ {
		x, y := sample(i)
		off := -y
		for j := range x {
			off += x[j] * m.weights[j]
		}
		for j := range x {
			values[j] += 2 * off * x[j] / float32(to-from)
		}
		values[len(x)] += off * off / float32(to-from)
	}
	for time.Now().Before(end) {
	}
	return workflows.Part{Weight: float64(to - from), Values: values}, nil
}

// Apply goes a step down.
func (m *regression) Apply(_ context.Context, _ int, mean workflows.Part) error {
	for j := range m.weights {
		m.momentum[j] = 0.9*m.momentum[j] + mean.Values[j]
		m.weights[j] -= 0.02 * m.momentum[j]
	}
	m.losses = append(m.losses, mean.Values[len(m.weights)])
	return nil
}

// MarshalBinary is the weights, the momentum, and the losses.
func (m *regression) MarshalBinary() ([]byte, error) {
	return binary.Append(nil, binary.LittleEndian, append(append(m.weights[:], m.momentum[:]...), m.losses...))
}

// UnmarshalBinary reads what MarshalBinary wrote.
func (m *regression) UnmarshalBinary(data []byte) error {
	m.losses = make([]float32, len(data)/4-len(m.weights)-len(m.momentum))
	reader := bytes.NewReader(data)
	for _, part := range []any{m.weights[:], m.momentum[:], m.losses} {
		if err := binary.Read(reader, binary.LittleEndian, part); err != nil {
			return err
		}
	}
	return nil
}

// regress is one worker of a regression, whose output is the loss of every round.
var regress = workflows.NewParallelStage("regress", func(
	ctx context.Context, in regressionInput, worker workflows.Worker,
) ([]float32, error) {
	m := &regression{of: in}
	err := worker.Train(ctx, workflows.Rounds{Count: in.Rounds, Pattern: workflows.AllGather}, m)
	return m.losses, err
})

// atFunctions is regress whose every call is a task that a spill worker forwards to functions.
type atFunctions struct {
	workflows.ParallelStage[regressionInput, []float32]

	t     *testing.T
	stack *stack

	mu    sync.Mutex
	calls []regressCall // that have ended
}

// regressCall is after which round a call of a worker began, and after which it stopped before its limit; at 0 it did
// not.
type regressCall struct{ worker, from, until int }

// Call has the task done by a function. One that ended with its function's time is tried again, as by the pool: a
// machine may be so busy that a call cannot end in time.
func (s *atFunctions) Call(ctx context.Context, input json.RawMessage) (json.RawMessage, error) {
	attempt, err := activities.FromContext(ctx)
	if err != nil {
		return nil, err
	}
	id := predictor.StageID{App: stage.App, Build: stage.Build, Name: s.Name()}
	var result wire.Result
	for try := range 20 {
		one := wire.Task{
			Version: wire.Version, Run: "r", Stage: id, ID: attempt.Task + "-" + strconv.Itoa(try), MaxAttempts: 3,
		}
		if result, err = s.stack.frontend.Submit(s.t, id.Queue(), one, input).Wait(s.t); err == nil {
			break
		}
		s.t.Logf("%s ends with %v", one.ID, err)
	}
	if err != nil {
		return nil, err
	}
	var told struct {
		Worker workflows.Worker `json:"worker"`
		Again  exchange.Saved   `json:"again"`
	}
	if err := errors.Join(json.Unmarshal(input, &told), json.Unmarshal(result.Output, &told)); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, regressCall{told.Worker.Number, told.Worker.From.Round, told.Again.Round})
	return result.Output, nil
}

// TestATrainingThatOutlastsItsFunctionsIsInvokedAgain trains by two workers in functions of a real host, whose limit is
// a fraction of what the training takes: each call saves the state and ends before its limit, the next goes on from
// there, and the losses of all rounds are those of a training that was never cut.
func TestATrainingThatOutlastsItsFunctionsIsInvokedAgain(t *testing.T) {
	t.Parallel()
	const limit, workers, rounds = 6 * time.Second, 2, 80 // of 0.15 s at least: two calls and more
	train := func(in regressionInput, change ...func(*awslambda.Options)) ([]float32, *atFunctions, *stack) {
		id := predictor.StageID{App: stage.App, Build: stage.Build, Name: regress.Name()}
		s, _ := startLive(t, predictor.Plan{Grants: []predictor.Grant{{
			Stage: id, Venue: predictor.Function, Slots: workers, Size: quantity.Size{Memory: 1769 * quantity.MiB},
		}}}, change...)
		at := &atFunctions{ParallelStage: regress, t: t, stack: s}
		pipeline := workflows.NewPipeline("regression", func(
			ctx workflow.Context, in regressionInput,
		) ([]float32, error) {
			return regress.Run(ctx, in, workers)
		})
		losses, err := spillwaytest.Run(t, pipeline, in, at)
		if err != nil {
			t.Fatal(err)
		}
		return losses, at, s
	}
	want, uncut, _ := train(regressionInput{Rounds: rounds})
	if len(uncut.calls) != workers || len(want) != rounds || want[rounds-1] > want[0]/100 {
		t.Fatalf("without a limit: calls %v, losses %v", uncut.calls, want)
	}
	got, cut, s := train(regressionInput{Rounds: rounds, Milliseconds: 150}, func(o *awslambda.Options) {
		o.Timeout = limit
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("losses of the rounds (-never cut +invoked again):\n%s", diff)
	}
	again := map[int]int{}
	for _, call := range cut.calls {
		if call.until > 0 {
			again[call.worker]++
			if call.until <= call.from {
				t.Errorf("a call got nowhere: %+v", call)
			}
		}
	}
	if again[0]+again[1] == 0 {
		t.Errorf("calls: %+v, want some that stopped before their limit", cut.calls)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, record := range s.records {
		if record.Billed > limit+time.Second || record.Venue != predictor.Function {
			t.Errorf("%s was billed for %s at %s, and its limit is %s", record.Task, record.Billed, record.Venue, limit)
		}
	}
	t.Logf("calls as worker, from and until round: %v", cut.calls)
}
