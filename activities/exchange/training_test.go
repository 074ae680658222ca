package exchange_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/exchange"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	samples   = 96
	inputs    = 7
	batchSize = 24
)

// logistic is logistic regression with momentum by its gradient, on points that a seed makes. The last value of a
// gradient is the loss.
type logistic struct {
	Weights, Momentum []float32
	Losses            []float64

	steps   int // of a part in model averaging; 0 averages gradients
	x       [][inputs]float64
	y       []float64
	before  func(round, part int) error
	applied map[int]int
}

func newLogistic(seed uint64) *logistic {
	random := rand.New(rand.NewPCG(seed, 7))
	m := &logistic{
		Weights: make([]float32, inputs), Momentum: make([]float32, inputs), applied: map[int]int{},
	}
	for range samples {
		var x [inputs]float64
		sum := 0.0
		for j := range x {
			x[j] = random.NormFloat64()
			sum += x[j] * float64(j-3)
		}
		m.x = append(m.x, x)
		label := 0.0
		if sum+random.NormFloat64() > 0 {
			label = 1
		}
		m.y = append(m.y, label)
	}
	return m
}

// gradient is that of the mean loss over samples from a first to before a last one.
func (m *logistic) gradient(weights []float32, from, to int) (gradient []float32, loss float64) {
	sum := make([]float64, inputs)
	for i := from; i < to; i++ {
		x, y := m.x[i%samples], m.y[i%samples]
		z := 0.0
		for j := range x {
			z += x[j] * float64(weights[j])
		}
		p := 1 / (1 + math.Exp(-z))
		loss -= y*math.Log(p) + (1-y)*math.Log(1-p)
		for j := range x {
			sum[j] += (p - y) * x[j]
		}
	}
	gradient = make([]float32, inputs)
	for j := range sum {
		gradient[j] = float32(sum[j] / float64(to-from))
	}
	return gradient, loss / float64(to-from)
}

func (m *logistic) Part(_ context.Context, round, part, parts int) (exchange.Vector, error) {
	if m.before != nil {
		if err := m.before(round, part); err != nil {
			return exchange.Vector{}, err
		}
	}
	from, to := round*batchSize+batchSize*part/parts, round*batchSize+batchSize*(part+1)/parts
	gradient, loss := m.gradient(m.Weights, from, to)
	if m.steps == 0 {
		return exchange.Vector{Weight: float64(to - from), Values: append(gradient, float32(loss))}, nil
	}
	weights := append([]float32(nil), m.Weights...)
	for range m.steps {
		gradient, loss = m.gradient(weights, from, to)
		for j := range weights {
			weights[j] -= 0.3 * gradient[j]
		}
	}
	return exchange.Vector{Weight: float64(to - from), Values: append(weights, float32(loss))}, nil
}

func (m *logistic) Apply(_ context.Context, round int, mean exchange.Vector) error {
	m.applied[round]++
	for j := range m.Weights {
		if m.steps > 0 {
			m.Weights[j] = mean.Values[j]
			continue
		}
		m.Momentum[j] = 0.9*m.Momentum[j] + mean.Values[j]
		m.Weights[j] -= 0.1 * m.Momentum[j]
	}
	m.Losses = append(m.Losses, float64(mean.Values[inputs]))
	return nil
}

func (m *logistic) MarshalBinary() ([]byte, error) { return json.Marshal(m) }

func (m *logistic) UnmarshalBinary(data []byte) error { return json.Unmarshal(data, m) }

// MarshalJSON keeps the state and nothing else.
func (m *logistic) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{m.Weights, m.Momentum, m.Losses})
}

func (m *logistic) UnmarshalJSON(data []byte) error {
	m.Weights, m.Momentum, m.Losses = nil, nil, nil
	return json.Unmarshal(data, &[]any{&m.Weights, &m.Momentum, &m.Losses})
}

func openFiles(t *testing.T) *artifact.Files {
	t.Helper()
	files, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// host is the training in one process, on whole batches.
func host(t *testing.T, rounds, steps int) *logistic {
	t.Helper()
	m := newLogistic(1)
	m.steps = steps
	for round := range rounds {
		whole, err := m.Part(t.Context(), round, 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Apply(t.Context(), round, whole); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func attemptOf(ctx context.Context, store activities.Store) (context.Context, *activities.Attempt) {
	attempt := &activities.Attempt{Store: store}
	attempt.Checkpoint = func(saved activities.Ref, _ ...activities.Ref) { attempt.Resume = saved }
	return activities.NewContext(ctx, attempt), attempt
}

// close1e5 says whether losses are equal to one part in 100,000, the first that is not.
func close1e5(got, want []float64) string {
	if len(got) != len(want) {
		return fmt.Sprintf("%d losses, want %d", len(got), len(want))
	}
	for i := range got {
		if !(math.Abs(got[i]-want[i]) <= 1e-5*math.Abs(want[i])) {
			return fmt.Sprintf("the loss of round %d is %v, want %v", i, got[i], want[i])
		}
	}
	return ""
}

// board returns a board of the pattern's kind.
func board(t *testing.T, pattern exchange.Pattern, files *artifact.Files) activities.Board {
	t.Helper()
	if pattern == exchange.ParameterServer {
		return &exchange.Memory{}
	}
	return files
}

func TestEveryWorkerLearnsWhatOneProcessLearns(t *testing.T) {
	t.Parallel()
	const rounds = 40
	want := host(t, rounds, 0)
	for _, pattern := range exchange.Patterns() {
		for _, workers := range []int{1, 2, 3, 4} {
			t.Run(fmt.Sprintf("%s of %d", pattern, workers), func(t *testing.T) {
				t.Parallel()
				files := openFiles(t)
				on := board(t, pattern, files)
				models := make([]*logistic, workers)
				var all sync.WaitGroup
				for i := range workers {
					models[i] = newLogistic(1)
					all.Go(func() {
						ctx, _ := attemptOf(t.Context(), files)
						told, err := exchange.Train(ctx, exchange.Job{
							Board: on, Group: "group", Worker: i, Workers: workers, Rounds: rounds, Pattern: pattern, Every: 7,
							Patience: time.Minute,
						}, models[i])
						if err != nil || told.Rounds != rounds || told.Parts != rounds {
							t.Errorf("worker %d: %+v, %v", i, told, err)
						}
					})
				}
				all.Wait()
				for i, m := range models {
					if wrong := close1e5(m.Losses, want.Losses); wrong != "" {
						t.Errorf("worker %d: %s", i, wrong)
					}
					if fmt.Sprint(m.Weights) != fmt.Sprint(models[0].Weights) {
						t.Errorf("worker %d has %v, worker 0 %v: not the same to the last bit", i, m.Weights, models[0].Weights)
					}
				}
				if left, err := on.Look(t.Context(), "group", "done-0"); !errors.Is(err, activities.ErrMissing) {
					t.Errorf("the board still has %d bytes, %v", len(left), err)
				}
			})
		}
	}
}

func TestModelsOfSeveralStepsAreAveraged(t *testing.T) {
	t.Parallel()
	const rounds, workers = 12, 3
	for _, pattern := range exchange.Patterns() {
		t.Run(string(pattern), func(t *testing.T) {
			t.Parallel()
			want := newLogistic(1) // one process that does all parts
			want.steps = 5
			files := openFiles(t)
			for round := range rounds {
				sum := make([]float64, inputs+1)
				for part := range workers {
					v, err := want.Part(t.Context(), round, part, workers)
					if err != nil {
						t.Fatal(err)
					}
					for j, value := range v.Values {
						sum[j] += float64(value) / workers
					}
				}
				mean := exchange.Vector{Weight: 1}
				for _, value := range sum {
					mean.Values = append(mean.Values, float32(value))
				}
				if err := want.Apply(t.Context(), round, mean); err != nil {
					t.Fatal(err)
				}
			}
			on := board(t, pattern, files)
			var all sync.WaitGroup
			for i := range workers {
				all.Go(func() {
					m := newLogistic(1)
					m.steps = 5
					ctx, _ := attemptOf(t.Context(), files)
					if _, err := exchange.Train(ctx, exchange.Job{
						Board: on, Group: "group", Worker: i, Workers: workers, Rounds: rounds, Pattern: pattern,
						Patience: time.Minute,
					}, m); err != nil {
						t.Error(err)
					}
					if wrong := close1e5(m.Losses, want.Losses); wrong != "" {
						t.Error(wrong)
					}
				})
			}
			all.Wait()
		})
	}
}

// TestOneWorkerAloneDoesTheWorkOfAll is what happens where there is room for one at a time: the others come once it has
// ended.
func TestOneWorkerAloneDoesTheWorkOfAll(t *testing.T) {
	t.Parallel()
	const rounds, workers = 20, 3
	want := host(t, rounds, 0)
	for _, pattern := range exchange.Patterns() {
		t.Run(string(pattern), func(t *testing.T) {
			t.Parallel()
			files := openFiles(t)
			on := board(t, pattern, files)
			for i := range workers {
				m := newLogistic(1)
				ctx, _ := attemptOf(t.Context(), files)
				told, err := exchange.Train(ctx, exchange.Job{
					Board: on, Group: "group", Worker: i, Workers: workers, Rounds: rounds, Pattern: pattern,
					Patience: 40 * time.Millisecond,
				}, m)
				if err != nil {
					t.Fatal(err)
				}
				if wrong := close1e5(m.Losses, want.Losses); wrong != "" {
					t.Errorf("worker %d: %s", i, wrong)
				}
				if i == 0 && told.Parts != rounds*workers || i > 0 && (told.Parts != 0 || told.Skipped != rounds) {
					t.Errorf("worker %d: %+v", i, told)
				}
			}
			if _, err := on.Look(t.Context(), "group", "done-0"); !errors.Is(err, activities.ErrMissing) {
				t.Errorf("the last one has left its board: %v", err)
			}
		})
	}
}

var errKilled = errors.New("killed")

// TestALostWorkerComesBackAndNoRoundCountsTwice kills each worker in some rounds, and lets its next attempt begin from
// what the one before had saved.
func TestALostWorkerComesBackAndNoRoundCountsTwice(t *testing.T) {
	t.Parallel()
	const rounds, workers = 30, 3
	want := host(t, rounds, 0)
	for _, pattern := range exchange.Patterns() {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%s, seed %d", pattern, seed), func(t *testing.T) {
				t.Parallel()
				files := openFiles(t)
				on := board(t, pattern, files)
				models := make([]*logistic, workers)
				var all sync.WaitGroup
				for i := range workers {
					random := rand.New(rand.NewPCG(seed, uint64(i)))
					all.Go(func() {
						var resume activities.Ref
						for tries := 0; ; tries++ {
							ctx, attempt := attemptOf(t.Context(), files)
							attempt.Resume = resume
							m := newLogistic(1)
							m.before = func(int, int) error {
								if tries < 4 && random.IntN(8) == 0 {
									return errKilled
								}
								return nil
							}
							models[i] = m
							_, err := exchange.Train(ctx, exchange.Job{
								Board: on, Group: "group", Worker: i, Workers: workers, Rounds: rounds, Pattern: pattern,
								Every: int(seed%2) * 4, Patience: 200 * time.Millisecond,
							}, m)
							if err == nil {
								return
							}
							if !errors.Is(err, errKilled) {
								t.Errorf("worker %d: %v", i, err)
								return
							}
							resume = attempt.Resume
						}
					})
				}
				all.Wait()
				for i, m := range models {
					if wrong := close1e5(m.Losses, want.Losses); wrong != "" {
						t.Errorf("worker %d: %s", i, wrong)
					}
				}
			})
		}
	}
}

func TestACallStopsBeforeItsLimitAndTheNextGoesOn(t *testing.T) {
	t.Parallel()
	const rounds, workers = 24, 2
	want := host(t, rounds, 0)
	files := openFiles(t)
	calls := make([]int, workers)
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			var state exchange.Saved
			for {
				m := newLogistic(1)
				m.before = func(int, int) error { time.Sleep(15 * time.Millisecond); return nil }
				ctx, _ := attemptOf(t.Context(), files) // another task: it has no checkpoint
				calls[i]++
				_, err := exchange.Train(ctx, exchange.Job{
					Board: files, Group: "group", Worker: i, Workers: workers, Rounds: rounds, State: state,
					Patience: 2 * time.Second, Limit: 700 * time.Millisecond,
				}, m)
				if again := (*exchange.AgainError)(nil); errors.As(err, &again) {
					if again.Round <= state.Round {
						t.Errorf("a call has done nothing: it began and stopped after round %d", again.Round)
						return
					}
					state = again.Saved
					continue
				}
				if err != nil {
					t.Error(err)
				}
				if wrong := close1e5(m.Losses, want.Losses); wrong != "" {
					t.Errorf("worker %d: %s", i, wrong)
				}
				return
			}
		})
	}
	all.Wait()
	if calls[0] < 2 {
		t.Errorf("%d calls: the limit stopped none", calls)
	}
}

func TestAServerThatForgetsDelaysAndChangesNothing(t *testing.T) {
	t.Parallel()
	const rounds, workers = 20, 2
	want := host(t, rounds, 0)
	files := openFiles(t)
	forgetful := &forgets{Memory: &exchange.Memory{}, at: 9}
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			m := newLogistic(1)
			ctx, _ := attemptOf(t.Context(), files)
			if _, err := exchange.Train(ctx, exchange.Job{
				Board: forgetful, Group: "group", Worker: i, Workers: workers, Rounds: rounds,
				Pattern: exchange.ParameterServer, Every: 4, Patience: 200 * time.Millisecond,
			}, m); err != nil {
				t.Error(err)
			}
			if wrong := close1e5(m.Losses, want.Losses); wrong != "" {
				t.Errorf("worker %d: %s", i, wrong)
			}
		})
	}
	all.Wait()
}

// forgets is a server that loses all it has, once, when a message of some round comes.
type forgets struct {
	*exchange.Memory

	at   int
	once sync.Once
}

func (f *forgets) Post(ctx context.Context, group, name string, data []byte) (bool, error) {
	first, err := f.Memory.Post(ctx, group, name, data)
	if strings.HasPrefix(name, fmt.Sprintf("%d-", f.at)) {
		f.once.Do(func() { err = f.Wipe(ctx, group) })
	}
	return first, err
}

// keeps is a board of whose messages none may be removed.
type keeps struct{ activities.Board }

func (keeps) Wipe(context.Context, string, ...string) error { return errors.New("access denied") }

func TestABoardThatKeepsItsMessagesEndsNoTraining(t *testing.T) {
	t.Parallel()
	const rounds, workers = 20, 2
	want := host(t, rounds, 0)
	files := openFiles(t)
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			m := newLogistic(1)
			ctx, _ := attemptOf(t.Context(), files)
			if _, err := exchange.Train(ctx, exchange.Job{
				Board: keeps{files}, Group: "group", Worker: i, Workers: workers, Rounds: rounds, Every: 4,
				Patience: time.Minute,
			}, m); err != nil {
				t.Error(err)
			}
			if wrong := close1e5(m.Losses, want.Losses); wrong != "" {
				t.Errorf("worker %d: %s", i, wrong)
			}
		})
	}
	all.Wait()
}

func TestWhatCannotBeTrainedIsRefused(t *testing.T) {
	t.Parallel()
	files := openFiles(t)
	good := exchange.Job{Board: files, Group: "group", Workers: 1, Rounds: 1}
	for name, test := range map[string]struct {
		change func(*exchange.Job)
		says   string
	}{
		"no board":          {func(j *exchange.Job) { j.Board = nil }, "no board"},
		"no group":          {func(j *exchange.Job) { j.Group = "" }, "group"},
		"a strange group":   {func(j *exchange.Job) { j.Group = "../up" }, "no name"},
		"no workers":        {func(j *exchange.Job) { j.Workers = 0 }, "worker 0 of 0"},
		"one too many":      {func(j *exchange.Job) { j.Worker = 1 }, "worker 1 of 1"},
		"no rounds":         {func(j *exchange.Job) { j.Rounds = 0 }, "0 rounds"},
		"negative patience": {func(j *exchange.Job) { j.Patience = -1 }, "negative"},
		"another pattern":   {func(j *exchange.Job) { j.Pattern = "ring" }, `"ring"`},
		"a server that is none": {
			func(j *exchange.Job) { j.Pattern = exchange.ParameterServer }, "no parameter server",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			job := good
			test.change(&job)
			ctx, _ := attemptOf(t.Context(), files)
			if _, err := exchange.Train(ctx, job, newLogistic(1)); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v, want it to say %q", err, test.says)
			}
		})
	}
	if _, err := exchange.Train(t.Context(), good, newLogistic(1)); !errors.Is(err, activities.ErrNoAttempt) {
		t.Errorf("outside an attempt: %v", err)
	}
}

// trainAlone has one worker of two train, on a board of its own.
func trainAlone(t *testing.T, files *artifact.Files, change func(*exchange.Job, *activities.Attempt, *logistic)) (
	exchange.Told, *logistic,
) {
	t.Helper()
	ctx, attempt := attemptOf(t.Context(), files)
	m := newLogistic(1)
	job := exchange.Job{
		Board: &exchange.Memory{}, Group: "group", Workers: 2, Rounds: 20, Pattern: exchange.AllGather, Every: 4,
		Patience: time.Millisecond,
	}
	change(&job, attempt, m)
	told, err := exchange.Train(ctx, job, m)
	if err != nil {
		t.Fatal(err)
	}
	return told, m
}

func TestAWorkerWhoseAnswerWasLostFindsThatTheTrainingIsOver(t *testing.T) {
	t.Parallel()
	files := openFiles(t)
	on := &exchange.Memory{}
	for i, worker := range []int{0, 1, 1, 0} {
		told, m := trainAlone(t, files, func(job *exchange.Job, _ *activities.Attempt, _ *logistic) {
			job.Board, job.Worker = on, worker
		})
		if i > 0 && (told.Parts != 0 || told.Skipped != 20) || len(m.Losses) != 20 {
			t.Errorf("call %d, of worker %d: %+v, %d losses", i, worker, told, len(m.Losses))
		}
	}
}

func TestAStateThatIsLostIsDoneWithout(t *testing.T) {
	t.Parallel()
	files := openFiles(t)
	lost := activities.Ref{Digest: strings.Repeat("ab", 32), Bytes: 9}
	for name, change := range map[string]func(*exchange.Job, *activities.Attempt, *logistic){
		"checkpoint": func(_ *exchange.Job, attempt *activities.Attempt, _ *logistic) { attempt.Resume = lost },
		"call":       func(job *exchange.Job, _ *activities.Attempt, _ *logistic) { job.State.State = lost },
	} {
		if told, m := trainAlone(t, files, change); told.Rounds != 20 || len(m.Losses) != 20 {
			t.Errorf("the state of the %s: %+v, %d losses", name, told, len(m.Losses))
		}
	}
}

func TestAWorkerThatDoesTheWorkOfAllLooksWhetherTheGroupIsFurther(t *testing.T) {
	t.Parallel()
	files := openFiles(t)
	there, own := &exchange.Memory{}, &exchange.Memory{}
	trainAlone(t, files, func(job *exchange.Job, _ *activities.Attempt, _ *logistic) { job.Board, job.Worker = there, 1 })
	end, err := there.Look(t.Context(), "group", "end")
	if err != nil {
		t.Fatal(err)
	}
	told, m := trainAlone(t, files, func(job *exchange.Job, _ *activities.Attempt, m *logistic) {
		job.Board = own
		m.before = func(round, _ int) error {
			if round != 6 {
				return nil
			}
			_, err := own.Post(t.Context(), "group", "end", end)
			return err
		}
	})
	if told.Rounds != 8 || told.Skipped != 12 || len(m.Losses) != 20 {
		t.Errorf("got %+v, %d losses; want 8 rounds, until it looks, and the rest from the others", told, len(m.Losses))
	}
}
