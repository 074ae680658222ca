package search_test

import (
	"container/heap"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/spillway-ml/spillway/predictor/search"
)

var space = search.Space{
	{Name: "lr", Kind: search.Float, Low: 1e-4, High: 1e-1, Log: true},
	{Name: "layers", Kind: search.Int, Low: 2, High: 8},
	{Name: "optimizer", Kind: search.Choice, Choices: []string{"adam", "sgd"}},
	{
		Name: "momentum", Kind: search.Float, Low: 0.5, High: 0.99,
		When: &search.Condition{Parameter: "optimizer", Values: []string{"sgd"}},
	},
}

func TestParametersAreReadAsPeopleWriteThem(t *testing.T) {
	t.Parallel()
	var read search.Space
	for _, text := range []string{
		"lr=log:1e-4..1e-1", "layers = 2..8", "optimizer=adam|sgd", "momentum=0.5..0.99 if optimizer=sgd",
	} {
		p, err := search.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		read = append(read, p)
	}
	if !reflect.DeepEqual(read, space) {
		t.Errorf("read %+v, want %+v", read, space)
	}
	if err := read.Check(); err != nil {
		t.Error(err)
	}
	for _, text := range []string{
		"", "lr", "=1..2", "lr=log:3", "lr=a..b", "momentum=0..1 if optimizer", "lr=0..1e400",
	} {
		if p, err := search.Parse(text); !errors.Is(err, search.ErrSpace) {
			t.Errorf("%q is read as %+v, %v", text, p, err)
		}
	}
}

func TestASpaceThatIsWrongIsRefused(t *testing.T) {
	t.Parallel()
	for name, wrong := range map[string]search.Space{
		"empty":             {},
		"no name":           {{Kind: search.Int, High: 1}},
		"twice":             {space[0], space[0]},
		"through zero":      {{Name: "lr", Kind: search.Float, Low: -1, High: 1, Log: true}},
		"from zero":         {{Name: "lr", Kind: search.Float, High: 1, Log: true}},
		"backwards":         {{Name: "lr", Kind: search.Float, Low: 2, High: 1}},
		"NaN":               {{Name: "lr", Kind: search.Float, Low: math.NaN(), High: 1}},
		"infinite":          {{Name: "lr", Kind: search.Float, Low: 0, High: math.Inf(1)}},
		"half":              {{Name: "n", Kind: search.Int, Low: 0.5, High: 2}},
		"no choice":         {{Name: "a", Kind: search.Choice}},
		"an empty choice":   {{Name: "a", Kind: search.Choice, Choices: []string{"x", ""}}},
		"a choice twice":    {{Name: "a", Kind: search.Choice, Choices: []string{"x", "x"}}},
		"no kind":           {{Name: "a", High: 1}},
		"a later condition": {space[3], space[2]},
		"a value that never is": {space[2], {
			Name: "m", Kind: search.Int, When: &search.Condition{Parameter: "optimizer", Values: []string{"lion"}},
		}},
	} {
		if err := wrong.Check(); !errors.Is(err, search.ErrSpace) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := search.New(wrong, search.Options{Trials: 1, Most: 1}); !errors.Is(err, search.ErrSpace) {
			t.Errorf("%s: a search begins: %v", name, err)
		}
	}
	for name, wrong := range map[string]search.Options{
		"no trial": {Most: 1}, "nothing": {Trials: 1}, "endless": {Trials: 1, Most: math.Inf(1)},
		"more first than in all": {Trials: 1, Least: 2, Most: 1}, "eta": {Trials: 1, Most: 1, Eta: 1},
		"unknown": {Trials: 1, Most: 1, Algorithm: "grid"}, "NaN": {Trials: 1, Most: math.NaN()},
	} {
		if _, err := search.New(space, wrong); !errors.Is(err, search.ErrOptions) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheSizeOfASpace(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		texts []string
		want  float64
	}{
		{[]string{"lr=5"}, 1},
		{[]string{"lr=0.5..0.5", "n=3..3"}, 1},
		{[]string{"n=2..4", "opt=adam|sgd"}, 6},
		{[]string{"n=log:2..64"}, 63},
		{[]string{"opt=adam|sgd", "m=1..2 if opt=sgd"}, 4},
		{[]string{"n=2..4", "lr=0..1.0"}, math.Inf(1)},
	} {
		var space search.Space
		for _, text := range row.texts {
			p, err := search.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			space = append(space, p)
		}
		if got := space.Size(); got != row.want {
			t.Errorf("%v: got %g, want %g", row.texts, got, row.want)
		}
	}
}

func TestConfigurationsAreOfTheSpace(t *testing.T) {
	t.Parallel()
	s, err := search.New(space, search.Options{Algorithm: search.Random, Trials: 4000, Most: 1})
	if err != nil {
		t.Fatal(err)
	}
	layers, low, sgd := map[float64]int{}, 0, 0
	for range 4000 {
		job, found := s.Next()
		if !found {
			t.Fatal("no job")
		}
		c := job.Configuration
		lr, momentum := c["lr"].Number, c["momentum"].Number
		if _, has := c["momentum"]; has != (c["optimizer"].Text == "sgd") || has && (momentum < 0.5 || momentum > 0.99) {
			t.Fatalf("configuration %v", c)
		}
		if lr < 1e-4 || lr > 1e-1 {
			t.Fatalf("lr %g", lr)
		}
		if lr < math.Sqrt(1e-5) {
			low++
		}
		if c["optimizer"].Text == "sgd" {
			sgd++
		}
		layers[c["layers"].Number]++
	}
	// Half of 4,000, within five standard deviations; each number of layers a seventh.
	if math.Abs(float64(low-2000)) > 160 || math.Abs(float64(sgd-2000)) > 160 || len(layers) != 7 {
		t.Errorf("%d below the middle of the factors, %d of sgd, layers %v", low, sgd, layers)
	}
	for n, count := range layers {
		if math.Abs(float64(count)-4000.0/7) > 115 {
			t.Errorf("%g layers %d times, want about 571", n, count)
		}
	}
	c := search.Configuration{"lr": {Number: 1e-3}, "optimizer": {Text: "adam"}}
	text, err := json.Marshal(c)
	if err != nil || string(text) != `{"lr":0.001,"optimizer":"adam"}` {
		t.Errorf("written %s, %v", text, err)
	}
	var back search.Configuration
	if err := json.Unmarshal(text, &back); err != nil || !reflect.DeepEqual(back, c) || back["lr"].String() != "0.001" {
		t.Errorf("read %v, %v", back, err)
	}
}

// objective has its minimum, 0, at lr 0.01, five layers and sgd with momentum 0.9.
func objective(c search.Configuration) float64 {
	lr, layers, momentum := math.Log10(c["lr"].Number)+2, (c["layers"].Number-5)/3, c["momentum"].Number-0.9
	loss := lr*lr + layers*layers
	if c["optimizer"].Text == "sgd" {
		return loss + 4*momentum*momentum
	}
	return loss + 0.3
}

// finish does all jobs of a search, of workers of which each takes as long as draws says.
func finish(t *testing.T, s *search.Search, workers int, objective func(search.Job) float64) (jobs []search.Job) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 1))
	var running []search.Job
	for {
		for len(running) < workers {
			job, found := s.Next()
			if !found {
				break
			}
			running, jobs = append(running, job), append(jobs, job)
		}
		if len(running) == 0 {
			break
		}
		i := r.IntN(len(running))
		if err := s.Report(running[i].Trial, objective(running[i])); err != nil {
			t.Fatal(err)
		}
		running = slices.Delete(running, i, i+1)
	}
	if !s.Done() {
		t.Fatal("a search without jobs is not done")
	}
	return jobs
}

var algorithms = []search.Algorithm{search.ASHA, search.Random, search.Halving, search.Hyperband, search.BOHB}

func TestEverySearchEndsAndGivesOneTrialAllThereIs(t *testing.T) {
	t.Parallel()
	for _, algorithm := range algorithms {
		for _, trials := range []int{1, 2, 5, 20, 27, 100} {
			for _, workers := range []int{1, 4, 50} {
				options := search.Options{Algorithm: algorithm, Trials: trials, Most: 81, Least: 3, Seed: 7}
				s, err := search.New(space, options)
				if err != nil {
					t.Fatal(err)
				}
				jobs := finish(t, s, workers, func(j search.Job) float64 { return objective(j.Configuration) + 1/j.To })
				has, furthest := map[int]float64{}, 0.0
				for _, job := range jobs {
					if job.From != has[job.Trial] || job.To <= job.From || job.To > 81 {
						t.Fatalf("%s: job %+v of a trial that has had %g", algorithm, job, has[job.Trial])
					}
					has[job.Trial] = job.To
					furthest = max(furthest, job.To)
				}
				if len(has) != trials || s.Begun() != trials || furthest != 81 {
					t.Errorf("%s with %d workers began %d of %d trials, the furthest came to %g", algorithm, workers, len(has),
						trials, furthest)
				}
				best, value, found := s.Best()
				if !found || has[best] != 81 || value != objective(s.Configuration(best))+1.0/81 {
					t.Errorf("%s: best %d with %g, which came to %g", algorithm, best, value, has[best])
				}
				again, err := search.New(space, options)
				if err != nil {
					t.Fatal(err)
				}
				same := finish(t, again, workers, func(j search.Job) float64 { return objective(j.Configuration) + 1/j.To })
				if !reflect.DeepEqual(same, jobs) {
					t.Errorf("%s: the same reports lead to other jobs", algorithm)
				}
			}
		}
	}
}

// With rungs that end at 1, 3 and 9: of three that ended, one goes on.
func TestASHAPromotesWithoutWaiting(t *testing.T) {
	t.Parallel()
	s, err := search.New(space, search.Options{Trials: 10, Most: 9, Least: 1, Maximise: true})
	if err != nil {
		t.Fatal(err)
	}
	next := func(trial, rung int) {
		t.Helper()
		if job, found := s.Next(); !found || job.Trial != trial || job.Rung != rung {
			t.Fatalf("job %+v, %v, want trial %d in rung %d", job, found, trial, rung)
		}
	}
	report := func(trial int, objective float64) {
		t.Helper()
		if err := s.Report(trial, objective); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 4 {
		next(i, 0)
	}
	report(0, 0.5)
	report(1, 0.9)
	next(4, 0) // two have ended: nobody is in the best third
	report(2, 0.7)
	next(1, 1) // three have, and the best of them goes on while the fourth runs
	next(5, 0)
	report(3, math.NaN())
	report(4, math.Inf(-1)) // diverged, like the one before
	report(5, 0.8)
	next(5, 1) // the second best of six
	report(1, 0.6)
	report(5, 0.95)
	for i := 6; i < 10; i++ {
		next(i, 0)
	}
	for i := 6; i < 9; i++ {
		report(i, 0.1)
	}
	next(2, 1) // the third best of nine
	report(2, 0.5)
	next(5, 2) // the best of three that ended the second rung
	if _, found := s.Next(); found {
		t.Error("a job, though all have begun and nobody else is among the best")
	}
	report(9, 0.2)
	report(5, 0.99)
	if trial, value, found := s.Best(); !s.Done() || !found || trial != 5 || value != 0.99 {
		t.Errorf("best %d with %g, %v, done %v", trial, value, found, s.Done())
	}
	for _, wrong := range []int{-1, 5, 99} {
		if err := s.Report(wrong, 1); err == nil {
			t.Errorf("a report of trial %d is taken", wrong)
		}
	}
}

// With rungs that end at 1, 3 and 9: six trials, whose objective is their number.
func TestASHAGoesOnWithTheNextBest(t *testing.T) {
	t.Parallel()
	asEver := [][2]int{{0, 0}, {1, 0}, {2, 0}, {0, 1}, {3, 0}, {4, 0}, {5, 0}, {1, 1}} // a third goes on
	for rules, then := range [][][2]int{
		{
			{0, 2},         // the best of two
			{2, 1},         // the third of six, before the second of two
			{1, 2}, {3, 1}, // the second of three, the fourth of six
			{2, 2}, {4, 1}, {3, 2}, {4, 2}, {5, 1}, {5, 2},
		},
		{{0, 2}, {1, 2}, {2, 1}, {2, 2}, {3, 1}, {3, 2}, {4, 1}, {4, 2}, {5, 1}, {5, 2}}, // the highest rung first
	} {
		s, err := search.New(space, search.Options{Trials: 6, Most: 9, Least: 1, GoOn: true, Rules: rules})
		if err != nil {
			t.Fatal(err)
		}
		var told [][2]int
		for _, job := range finish(t, s, 1, func(j search.Job) float64 { return float64(j.Trial) }) {
			told = append(told, [2]int{job.Trial, job.Rung})
		}
		if want := slices.Concat(asEver, then); !reflect.DeepEqual(told, want) {
			t.Errorf("rules %d: jobs %v, want %v", rules, told, want)
		}
	}
	for _, wrong := range []search.Options{
		{Trials: 6, Most: 9, GoOn: true, Algorithm: search.BOHB},
		{Trials: 6, Most: 9, Rules: search.Newest + 1},
		{Trials: 6, Most: 9, Rules: -1},
	} {
		if _, err := search.New(space, wrong); !errors.Is(err, search.ErrOptions) {
			t.Errorf("%+v: got %v, want ErrOptions", wrong, err)
		}
	}
}

func TestHyperbandHasTheBracketsOfItsPaper(t *testing.T) {
	t.Parallel()
	const trials = 81 + 34 + 15 + 8 + 5
	s, err := search.New(space, search.Options{Algorithm: search.Hyperband, Trials: trials, Most: 81, Least: 1})
	if err != nil {
		t.Fatal(err)
	}
	begun, in := map[int]int{}, map[int]int{}
	for _, job := range finish(t, s, 10, func(j search.Job) float64 { return objective(j.Configuration) }) {
		if job.From == 0 {
			begun[job.Rung]++
		}
		in[job.Rung]++
	}
	// n = ceil(5/(s+1) 3^s) begin, and of each rung a third goes on.
	if want := map[int]int{0: 81, 1: 34, 2: 15, 3: 8, 4: 5}; !reflect.DeepEqual(begun, want) {
		t.Errorf("begun in each rung: %v, want %v", begun, want)
	}
	want := map[int]int{0: 81, 1: 27 + 34, 2: 9 + 11 + 15, 3: 3 + 3 + 5 + 8, 4: 1 + 1 + 1 + 2 + 5}
	if !reflect.DeepEqual(in, want) {
		t.Errorf("in each rung: %v, want %v", in, want)
	}
}

func TestWhatDivergesIsNeverPromoted(t *testing.T) {
	t.Parallel()
	for _, algorithm := range algorithms {
		s, err := search.New(space, search.Options{Algorithm: algorithm, Trials: 60, Most: 27})
		if err != nil {
			t.Fatal(err)
		}
		diverged := map[int]bool{}
		for _, job := range finish(t, s, 5, func(j search.Job) float64 {
			if j.Trial%2 == 0 {
				diverged[j.Trial] = true
				return math.NaN()
			}
			return objective(j.Configuration)
		}) {
			if job.From > 0 && diverged[job.Trial] {
				t.Errorf("%s: trial %d goes on though it diverged", algorithm, job.Trial)
			}
		}
		all, err := search.New(space, search.Options{Algorithm: algorithm, Trials: 10, Most: 27})
		if err != nil {
			t.Fatal(err)
		}
		finish(t, all, 3, func(search.Job) float64 { return math.NaN() })
		if trial, _, found := all.Best(); found {
			t.Errorf("%s: of trials that all diverged, %d is the best", algorithm, trial)
		}
	}
}

func TestBOHBFindsBetterConfigurationsThanDrawing(t *testing.T) {
	t.Parallel()
	found := func(algorithm search.Algorithm) (values []float64) {
		for seed := range uint64(25) {
			s, err := search.New(space, search.Options{Algorithm: algorithm, Trials: 120, Most: 9, Least: 1, Seed: seed})
			if err != nil {
				t.Fatal(err)
			}
			best := math.Inf(1)
			finish(t, s, 1, func(j search.Job) float64 {
				best = min(best, objective(j.Configuration))
				return objective(j.Configuration)
			})
			values = append(values, best)
		}
		slices.Sort(values)
		return values
	}
	model, drawn := found(search.BOHB), found(search.Hyperband)
	if model[12] > 0.7*drawn[12] {
		t.Errorf("the median of the best of 120 is %g with the model, %g drawn", model[12], drawn[12])
	}
}

// ends are jobs by their end.
type ends []struct {
	at  float64
	job search.Job
}

func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, j int) bool { return e[i].at < e[j].at }
func (e ends) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *ends) Push(x any) {
	*e = append(*e, x.(struct { //nolint:forcetypeassert // of this heap
		at  float64
		job search.Job
	}))
}

func (e *ends) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// busy is the part of their time in which workers work until so many jobs are done, where jobs take log-normal times
// for what they do.
func busy(t *testing.T, algorithm search.Algorithm, workers, until int) float64 {
	t.Helper()
	s, err := search.New(space, search.Options{Algorithm: algorithm, Trials: 100_000, Most: 81, Least: 1})
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(5, 6))
	var running ends
	now, worked := 0.0, 0.0
	for range until {
		for len(running) < workers {
			job, found := s.Next()
			if !found {
				break
			}
			takes := (job.To - job.From) * math.Exp(0.8*r.NormFloat64())
			heap.Push(&running, struct {
				at  float64
				job search.Job
			}{now + takes, job})
		}
		next := running[0]
		worked += (next.at - now) * float64(len(running))
		now = next.at
		heap.Pop(&running)
		if err := s.Report(next.job.Trial, objective(next.job.Configuration)); err != nil {
			t.Fatal(err)
		}
	}
	return worked / (now * float64(workers))
}

func TestASHAKeepsWorkersBusyWhereHalvingWaits(t *testing.T) {
	t.Parallel()
	asha, halving := busy(t, search.ASHA, 25, 2000), busy(t, search.Hyperband, 25, 2000)
	if asha < 0.95 || halving > 0.2 {
		t.Errorf("workers are busy for %.0f %% with ASHA and %.0f %% with brackets, want at least 95 %% and at most 20 %%",
			100*asha, 100*halving)
	}
	t.Logf("busy: ASHA %.3f, brackets that wait %.3f", asha, halving)
}

func BenchmarkASHAOfFourThousandTrials(b *testing.B) {
	for b.Loop() {
		s, err := search.New(space, search.Options{Trials: 4096, Most: 729, Least: 1})
		if err != nil {
			b.Fatal(err)
		}
		for job, found := s.Next(); found; job, found = s.Next() {
			if err := s.Report(job.Trial, objective(job.Configuration)); err != nil {
				b.Fatal(err)
			}
		}
	}
}
