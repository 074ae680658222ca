package simulate

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/series"
	"github.com/spillway-ml/spillway/predictor/sim/policy"
)

// The most that is replayed: a million tasks take some minutes, and so do the seconds of a year.
const (
	mostTasks = 1_000_000
	mostSpan  = 366 * 24 * time.Hour
)

// arrivals reads the trace: when it begins, for how long it goes on, and what comes.
func (f *simulateFlags) arrivals() (start time.Time, span time.Duration, all []policy.Arrival, err error) {
	refused := func(problem, hint string) error {
		return &fault.UsageError{Problem: fmt.Sprintf("--trace %s: %s", f.trace, problem), Hint: hint}
	}
	recorded, err := f.read()
	if err != nil {
		return start, 0, nil, refused(err.Error(), "`spillway simulate --help` shows a trace")
	}
	counted := len(recorded.Minutes) > 0
	switch {
	case counted && f.work == 0:
		return start, 0, nil, refused("it counts tasks, and does not say what they take",
			"give the core-seconds of each with --work, such as --work 0.25")
	case !counted && f.work > 0:
		return start, 0, nil, refused("it says what each task takes, and so does --work", "leave --work out")
	}
	if counted {
		start, span, all = f.drawn(recorded.Minutes)
	} else {
		start = recorded.Tasks[0].At
		for _, task := range recorded.Tasks[:min(len(recorded.Tasks), mostTasks+1)] {
			all = append(all, policy.Arrival{At: task.At.Sub(start), Work: task.Work})
		}
		span = all[len(all)-1].At
	}
	if len(all) > mostTasks {
		return start, 0, nil, refused(fmt.Sprintf("it has more than %d tasks", mostTasks), "give a part of it")
	}
	if span > mostSpan {
		return start, 0, nil, refused("it goes on for longer than a year",
			"give a part of it, and see whether its times are seconds")
	}
	return start, span, all, nil
}

func (f *simulateFlags) read() (recorded series.Arrivals, err error) {
	file, err := flag.OpenFile(f.trace)
	if err != nil {
		return recorded, fault.WithoutPath(err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return series.Decompressed(f.trace, file, series.Work)
}

// drawn lets the tasks of each minute come at times that are drawn from it, which makes of counts that follow a Poisson
// process that process.
func (f *simulateFlags) drawn(minutes []series.Minute) (start time.Time, span time.Duration, all []policy.Arrival) {
	random := rand.New(rand.NewPCG(f.seed, 0)) //nolint:gosec // no secret is drawn
	start = minutes[0].At
	work := time.Duration(f.work * float64(time.Second))
	for _, minute := range minutes {
		begin, from := minute.At.Sub(start), len(all)
		span = begin + time.Minute
		for range min(minute.Count, mostTasks+1-len(all)) {
			all = append(all, policy.Arrival{At: begin + time.Duration(random.Int64N(int64(time.Minute))), Work: work})
		}
		slices.SortFunc(all[from:], func(a, b policy.Arrival) int { return int(a.At - b.At) })
	}
	return start, span, all
}

// policies are the values of --policy, in the order of the table.
func policies() []string { return strings.Fields("ours static mean kpa hpa functions") }
