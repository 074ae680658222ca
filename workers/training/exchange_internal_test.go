package training

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/partition"
)

// TestReplicasSendWhatZeROSays has the volumes of Rajbhandari et al., section 7, of which 64 replicas send nearly all.
func TestReplicasSendWhatZeROSays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		sharding     exec.Sharding
		replicas     int
		microBatches int
		want         float64
	}{
		{"", 1, 1, 0},
		{"", 2, 1, 1},
		{exec.ShardNone, 4, 8, 1.5},
		{exec.ShardOptimizer, 4, 8, 1.5},
		{exec.ShardGradients, 4, 1, 1.5},
		{exec.ShardGradients, 4, 3, 3},
		{exec.ShardParameters, 4, 1, 2.25},
		{exec.ShardParameters, 64, 1, 3 * 63. / 64},
		{exec.ShardParameters, 2, 2, 3},
	} {
		if got := sent(c.sharding, 1, c.replicas, c.microBatches); !near(got, c.want) {
			t.Errorf("sharding %q, %d replicas, %d micro-batches: %v of the parameters; want %v", c.sharding, c.replicas,
				c.microBatches, got, c.want)
		}
	}
}

func TestWhatWasMeasuredAmongSomeRanksIsBroughtToOthers(t *testing.T) {
	t.Parallel()
	two := exec.Exchange{
		Ranks: 2, AllReduce: exec.Transfer{Fixed: 2, EachByte: 10}, Send: exec.Transfer{Fixed: 1, EachByte: 4}, Step: 3,
	}
	if same := among(two, 2, 1); same != two {
		t.Errorf("among as many: %+v; want %+v", same, two)
	}
	// A ring of four has six messages of a quarter each for two of a half.
	four := among(two, 4, 1)
	if !near(four.AllReduce.Fixed, 6) || !near(four.AllReduce.EachByte, 15) || four.Send != two.Send {
		t.Errorf("among four: %+v", four)
	}
	if back := among(four, 2, 1); !near(back.AllReduce.Fixed, 2) || !near(back.AllReduce.EachByte, 10) {
		t.Errorf("and back: %+v", back)
	}
	if shared := among(two, 2, 3); !near(shared.AllReduce.Fixed, 6) || !near(shared.Step, 9) ||
		!near(shared.Send.EachByte, 12) {
		t.Errorf("of three ranks on each processor: %+v", shared)
	}
}

// drawGradients draws those of the operations of a part, and how they are exchanged.
func drawGradients(t *rapid.T) ([]gradient, exec.Exchange) {
	all := make([]gradient, rapid.IntRange(0, 12).Draw(t, "operations"))
	for i := range all {
		all[i] = gradient{
			bytes:   float64(rapid.SampledFrom([]int{0, 1 << 10, 1 << 19, 3 << 20, 40 << 20}).Draw(t, "bytes")),
			seconds: rapid.Float64Range(0, 0.1).Draw(t, "seconds"),
		}
	}
	return all, exec.Exchange{AllReduce: exec.Transfer{
		Fixed:    rapid.Float64Range(0, 0.01).Draw(t, "of a message"),
		EachByte: rapid.Float64Range(0, 1e-8).Draw(t, "of a byte"),
	}}
}

// buckets fills them as DistributedDataParallel does: the sizes, and after which operation each is full.
func buckets(all []gradient) (sizes []float64, after []int) {
	held := 0.0
	for i, g := range all {
		held += g.bytes
		limit := moreBuckets
		if len(sizes) == 0 {
			limit = firstBucket
		}
		if held >= limit {
			sizes, after, held = append(sizes, held), append(after, i), 0
		}
	}
	if held > 0 {
		sizes, after = append(sizes, held), append(after, len(all)-1)
	}
	return sizes, after
}

func TestAnExchangeThatHidesNothingTakesAllOfItsTime(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		all, e := drawGradients(t)
		want := 0.0
		sizes, _ := buckets(all)
		for _, bytes := range sizes {
			want += e.AllReduce.At(bytes)
		}
		if got := exposed(all, e); math.Abs(got-want) > 1e-9 {
			t.Errorf("got %v s, want %v", got, want)
		}
	})
}

// TestAnExchangeThatHidesAllEndsWithTheLastBucket compares with a queue: a bucket goes when it is full and the one
// before is through.
func TestAnExchangeThatHidesAllEndsWithTheLastBucket(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		all, e := drawGradients(t)
		e.Hidden = 1
		sizes, after := buckets(all)
		through, pass := 0.0, 0.0
		for _, g := range all {
			pass += g.seconds
		}
		for i, bytes := range sizes {
			full := 0.0
			for _, g := range all[:after[i]+1] {
				full += g.seconds
			}
			through = max(through, full) + e.AllReduce.At(bytes)
		}
		if got, want := exposed(all, e), max(through-pass, 0); math.Abs(got-want) > 1e-9 {
			t.Errorf("got %v s, want %v", got, want)
		}
		more := e
		more.Hidden = rapid.Float64Range(0, 1).Draw(t, "hidden")
		if less := exposed(all, e); exposed(all, more) < less-1e-9 {
			t.Errorf("what hides less takes %v s; less than %v", exposed(all, more), less)
		}
	})
}

// exchanging is a synthetic executor whose replicas exchange what is written down.
type exchanging struct {
	synthetic
	exchange exec.Exchange
	asked    *int
	refuses  error // replicas
	fails    error // to exchange
}

func (e exchanging) Distributes(context.Context) error { return e.refuses }

func (e exchanging) Exchange(_ context.Context, devices []exec.Device) (exec.Exchange, error) {
	if e.asked != nil {
		*e.asked++
	}
	found := e.exchange
	found.Ranks = len(devices)
	return found, e.fails
}

// processorsOf are so many CPUs of this process.
func processorsOf(n int) deviceSet {
	d := deviceSet{own: true}
	for i := range n {
		d.all = append(d.all, exec.Device{ID: "cpu-" + strconv.Itoa(i), Threads: 1, CPUs: []int{i}})
	}
	return d
}

// drawExchange draws what replicas exchange.
func drawExchange(t *rapid.T) exec.Exchange {
	seconds := func(name string, most float64) float64 { return rapid.Float64Range(0, most).Draw(t, name) }
	line := func(name string) exec.Transfer {
		return exec.Transfer{Fixed: seconds(name, 0.005), EachByte: seconds(name+" of a byte", 1e-6)}
	}
	return exec.Exchange{
		AllReduce: line("all-reduce"), Gather: line("gather"), Scatter: line("scatter"), Send: line("send"),
		Step: seconds("step", 0.001), Hidden: seconds("hidden", 1),
		Process: quantity.Bytes(rapid.IntRange(0, 5000).Draw(t, "process")),
	}
}

// chosen plans a synthetic model on some CPUs.
func chosen(t rapid.TB, e exchanging, job Job, cpus int, host float64) (setup, choice, []way, error) {
	t.Helper()
	devices := processorsOf(cpus)
	ways, err := job.ways(devices)
	if err != nil {
		t.Fatal(err)
	}
	s := setupOf(t, e.synthetic, job.Batch, exec.Device{Threads: 1})
	for n := 2; n <= cpus; n++ { // each class costs the same
		s.model.classes[classOf(exec.Device{Threads: n})] = s.model.classes[classOf(exec.Device{Threads: 1})]
	}
	s.recompute, s.host = job.Recompute, host
	c, err := s.chooseAmong(context.Background(), job, ways)
	return s, c, ways, err
}

// TestTheChoiceIsTheBestOfAllReplicasPartsAndMicroBatches compares with every way to cut a chain, for every number of
// replicas and micro-batches.
func TestTheChoiceIsTheBestOfAllReplicasPartsAndMicroBatches(t *testing.T) {
	t.Parallel()
	several := 0
	rapid.Check(t, func(t *rapid.T) {
		e := exchanging{synthetic: drawSynthetic(t, 1, 5, false), exchange: drawExchange(t)}
		job := Job{
			Executor: e, Batch: rapid.SampledFrom([]int{3, 4, 8, 12}).Draw(t, "batch"), Replicas: AutoReplicas,
			Recompute: RecomputeNever,
		}
		cpus := rapid.IntRange(1, 4).Draw(t, "CPUs")
		s, c, ways, err := chosen(t, e, job, cpus, 0)
		if err != nil {
			t.Fatal(err)
		}
		if s.exchange.Ranks == 0 { // replicas were not worth it without what they exchange
			s.exchange = e.exchange
			s.exchange.Ranks = 2
		}
		best := math.Inf(1)
		for _, w := range ways {
			for _, k := range w.parts(job) {
				if k > len(e.ops) {
					continue
				}
				of := s.of(w, k, exec.ShardNone)
				for m := 1; m <= job.Batch/w.replicas(); m *= 2 {
					if w.replicas() == 1 || k == 1 || job.Batch%(w.replicas()*m) == 0 {
						best = min(best, everySplit(t, of, w.groups[0].of(k), m))
					}
				}
			}
		}
		if c.best.seconds > best*worthAPart+1e-12 {
			t.Errorf("a step of %d replicas of %d parts takes %v s; another takes %v", c.best.count(), len(c.best.parts),
				c.best.seconds, best)
		}
		if c.best.count() > 1 {
			several++
		}
	})
	if several == 0 {
		t.Error("no plan had replicas")
	}
}

func TestMoreDevicesAreNeverAWorsePlan(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		e := exchanging{synthetic: drawSynthetic(t, 1, 4, false), exchange: drawExchange(t)}
		job := Job{Executor: e, Batch: 8, Replicas: AutoReplicas, Recompute: RecomputeNever}
		cpus := rapid.IntRange(1, 4).Draw(t, "CPUs")
		_, fewer, _, err := chosen(t, e, job, cpus, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, more, _, err := chosen(t, e, job, cpus+1, 0)
		if err != nil {
			t.Fatal(err)
		}
		if more.best.seconds > fewer.best.seconds*worthAPart+1e-12 {
			t.Errorf("a step on %d CPUs takes %v s, and on %d %v", cpus+1, more.best.seconds, cpus, fewer.best.seconds)
		}
	})
}

func TestReplicasNeverHoldMoreThanTheHostHas(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		e := exchanging{synthetic: drawSynthetic(t, 1, 4, false), exchange: drawExchange(t)}
		job := Job{Executor: e, Batch: 8, Replicas: AutoReplicas, Recompute: RecomputeAuto}
		host := float64(rapid.IntRange(1, 400_000).Draw(t, "host"))
		s, c, ways, err := chosen(t, e, job, 4, host)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range append(c.fitting, c.best) {
			if one.count() < 2 {
				continue
			}
			at := slices.IndexFunc(ways, func(w way) bool { return w.replicas() == one.count() })
			if held := s.of(ways[at], len(one.parts), one.sharding).needs(one); held > host {
				t.Errorf("%d replicas of %d parts hold %v bytes of %v", one.count(), len(one.parts), held, host)
			}
		}
	})
}

// TestReplicasDivideNoMoreThanMemoryWants has bounds on the devices that less and less fits.
func TestReplicasDivideNoMoreThanMemoryWants(t *testing.T) {
	t.Parallel()
	s := setup{batch: 8, schedule: OneForwardOneBackward, state: 8, recompute: RecomputeNever}
	with := setupOf(t, synthetic{ops: []syntheticOp{
		{parameters: 1000, output: 1, activation: 1}, {parameters: 1000, output: 1, activation: 1},
	}, reads: [][2]int{{0, 1}}}, 8, exec.Device{Threads: 1})
	s.model, s.exchange = with.model, exec.Exchange{Ranks: 2}
	// Each has 2000 bytes of parameters, 4000 of their optimizer, 2000 of gradients, and as many in buckets.
	for _, c := range []struct {
		memory quantity.Bytes
		want   exec.Sharding
	}{{20_000, exec.ShardNone}, {10_000, exec.ShardOptimizer}, {8000, exec.ShardParameters}, {1000, ""}} {
		one := exec.Device{ID: "a", Threads: 1, Memory: c.memory}
		other := one
		other.ID = "b"
		job := Job{Batch: 8, Replicas: 2, Partitions: 1, MicroBatches: 1, Recompute: RecomputeNever}
		ways, err := job.ways(deviceSet{all: []exec.Device{one, other}})
		if err != nil {
			t.Fatal(err)
		}
		found, err := s.tryLevels(t.Context(), job, ways[0], 1)
		if err != nil {
			t.Fatal(err)
		}
		if got := found.fits.sharding; got != c.want {
			t.Errorf("with %v each: replicas divide %q (%v bytes at most); want %q", c.memory, got, found.fits.peak(), c.want)
		}
	}
}

// TestReplicasAreNotChosenWhereTheyLearnOtherwise has a model with batch normalization, an executor without replicas,
// and one that is compiled.
func TestReplicasAreNotChosenSilently(t *testing.T) {
	t.Parallel()
	chain := synthetic{ops: []syntheticOp{{forward: line{each: 0.1}, backward: line{each: 0.2}, parameters: 4}}}
	asked := 0
	able := exchanging{synthetic: chain, asked: &asked}
	normed := able
	normed.statistics = "norm1"
	old := able
	old.refuses = refused("torch is too old; install another")
	cut := exchanging{synthetic: chain, fails: refused("nobody answers")}
	for name, c := range map[string]struct {
		executor exec.Executor
		compile  bool
		want     int
		reason   string
	}{
		"one that can":     {able, false, 2, "2 replicas of one part have the shortest step"},
		"statistics":       {normed, false, 1, "no replicas: norm1 computes statistics"},
		"an old torch":     {old, false, 1, "no replicas: replicas cannot be trained here"},
		"another executor": {chain, false, 1, "no replicas: replicas cannot be trained here"},
		"a cut connection": {cut, false, 1, "there is one device, or one operation"},
		"a compiler":       {able, true, 1, "no replicas: of what is compiled there are replicas only where"},
	} {
		job := Job{
			Executor: c.executor, Batch: 8, Replicas: AutoReplicas, Schedule: OneForwardOneBackward,
			Recompute: RecomputeNever, Compile: c.compile, MicroBatches: 1,
		}
		made, err := plan(t.Context(), job, processorsOf(2))
		if err != nil {
			t.Fatal(err)
		}
		if got := max(made.layout.Replicas, 1); got != c.want || !strings.Contains(made.training.Reason, c.reason) {
			t.Errorf("%s: %d replicas, %q; want %d, %q", name, got, made.training.Reason, c.want, c.reason)
		}
	}
	if asked != 1 {
		t.Errorf("what replicas exchange was measured %d times; want once, where they are worth it", asked)
	}
}

// TestAPlanOfReplicasIsUsedAgain reads what a checkpoint keeps.
func TestAPlanOfReplicasIsUsedAgain(t *testing.T) {
	t.Parallel()
	chain := exchanging{synthetic: synthetic{ops: []syntheticOp{
		{forward: line{each: 0.1}, backward: line{each: 0.2}, parameters: 4},
	}}}
	job := Job{
		Executor: chain, Batch: 8, Replicas: AutoReplicas, Schedule: OneForwardOneBackward, Recompute: RecomputeNever,
	}
	devices := processorsOf(2)
	made, err := plan(t.Context(), job, devices)
	if err != nil {
		t.Fatal(err)
	}
	made.wishes = wishesOf(job, devices)
	from := exec.Checkpoint{Meta: exec.Describe("synthetic", made.layout)}
	from.Meta.Model, from.Meta.Plan = made.training.Model, made.kept()
	again, err := reused(job, devices, from)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := again.layout, made.layout; got.Replicas != 2 || got.Replicas != want.Replicas ||
		got.Batch != want.Batch || got.MicroBatches != want.MicroBatches || len(got.Parts) != len(want.Parts) ||
		!slices.EqualFunc(got.Parts[0].Replicas, want.Parts[0].Replicas, func(a, b exec.Device) bool {
			return a.ID == b.ID && slices.Equal(a.CPUs, b.CPUs)
		}) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	job.Replicas = 1
	if _, err := reused(job, devices, from); err == nil || !strings.Contains(err.Error(), "replicas") {
		t.Errorf("with one replica: %v; want that it was made for others", err)
	}
	// Nobody has asked for another number: those of the checkpoint are planned.
	job.Replicas = AutoReplicas
	from.Meta.Replicas, from.Meta.Plan = 1, nil
	one, err := planToResume(t.Context(), job, devices, &from)
	if err != nil || max(one.layout.Replicas, 1) != 1 {
		t.Errorf("from a checkpoint of one replica: %d, %v", one.layout.Replicas, err)
	}
}

// loadsOne is an executor that cannot load replicas.
type loadsOne struct {
	exchanging
	loaded *[]int
}

func (l loadsOne) Load(_ context.Context, layout exec.Layout) (exec.Pipeline, error) {
	*l.loaded = append(*l.loaded, max(layout.Replicas, 1))
	if layout.Replicas > 1 {
		return nil, refused("parts of replicas pass tensors alone; choose one replica")
	}
	return nil, nil
}

func TestReplicasThatNobodyAskedForAreGivenUpWhereTheyCannotBeLoaded(t *testing.T) {
	t.Parallel()
	var loaded []int
	executor := loadsOne{exchanging{synthetic: synthetic{ops: []syntheticOp{
		{forward: line{each: 0.1}, backward: line{each: 0.2}, parameters: 4},
	}}}, &loaded}
	for _, c := range []struct {
		replicas int
		want     []int
		fails    bool
	}{{AutoReplicas, []int{2, 1}, false}, {2, []int{2}, true}} {
		loaded = nil
		job := Job{Executor: executor.exchanging, Batch: 8, Steps: 2, Replicas: c.replicas, Directory: "none"}
		job, _, err := job.normalized()
		if err != nil {
			t.Fatal(err)
		}
		tr := &trainer{job: job}
		if tr.planned, err = plan(t.Context(), job, processorsOf(2)); err != nil {
			t.Fatal(err)
		}
		tr.training, tr.job.Executor = tr.planned.training, executor
		if err := tr.load(t.Context()); (err != nil) != c.fails || !slices.Equal(loaded, c.want) {
			t.Errorf("replicas %d: loaded %v, error %v; want %v", c.replicas, loaded, err, c.want)
		}
		if !c.fails && (tr.training.Replicas > 1 || tr.planned.layout.Replicas > 1) {
			t.Errorf("the plan has %d replicas still", tr.training.Replicas)
		}
	}
}

// TestMoreRanksThanCPUsArePricedBesideFewer has eight replicas on two CPUs, and a host without room for them.
func TestMoreRanksThanCPUsArePricedBesideFewer(t *testing.T) {
	t.Parallel()
	e := exchanging{
		synthetic: synthetic{ops: []syntheticOp{{forward: line{fixed: 0.1}, backward: line{fixed: 0.2}, parameters: 4}}},
		exchange:  exec.Exchange{AllReduce: exec.Transfer{Fixed: 0.01}},
	}
	job := Job{
		Executor: e, Batch: 16, Replicas: 8, Schedule: OneForwardOneBackward, Recompute: RecomputeNever, MicroBatches: 1,
	}
	made, err := plan(t.Context(), job, processorsOf(2))
	if err != nil {
		t.Fatal(err)
	}
	others := made.training.Alternatives
	if made.training.Replicas != 8 || len(others) != 1 || others[0].Replicas != 2 ||
		!(others[0].StepSeconds < made.training.PredictedStepSeconds) ||
		!strings.Contains(others[0].Reason, "less, and 8 replicas were asked for") {
		t.Errorf("got %d replicas, beside %+v", made.training.Replicas, others)
	}
	_, _, _, err = chosen(t, e, job, 2, 8)
	if !errors.Is(err, partition.ErrUnfit) || !strings.Contains(err.Error(), "choose fewer replicas") {
		t.Errorf("on a host of 8 bytes: %v", err)
	}
}

// TestAPastTrainingOfReplicasCorrectsThoseOfAsMany prices what was measured of replicas as it prices them today.
func TestAPastTrainingOfReplicasCorrectsThoseOfAsMany(t *testing.T) {
	t.Parallel()
	s := setupOf(t, synthetic{ops: []syntheticOp{{forward: line{each: 0.1}, backward: line{each: 0.2}}}}, 8,
		exec.Device{Threads: 1})
	ways, err := Job{Replicas: 2, Batch: 8}.ways(processorsOf(2))
	if err != nil {
		t.Fatal(err)
	}
	past := predictor.Training{
		Model: s.model.digest, Executor: "synthetic", Schedule: GPipe, Batch: 8, MicroBatches: 2, Replicas: 2,
		Parts: []predictor.TrainingPart{{Kind: exec.CPU, Threads: 1}},
	}
	devices := ways[0].groups[0].of(1)
	if _, alike := s.today(past, "synthetic", devices); alike {
		t.Error("it corrects one replica")
	}
	of := s.of(ways[0], 1, "")
	made, alike := of.today(past, "synthetic", devices)
	if !alike || made.count() != 2 {
		t.Errorf("it does not correct as many: %d replicas, %t", made.count(), alike)
	}
}
