package predictor_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// threaded is a program that is started with as many threads as its share has whole cores, and so never held back. Part
// of what it does is shared by its threads, and each adds to what all wait for.
type threaded struct{ part, contention float64 }

// took is how long one of a second takes, and how much of its cores it uses.
func (p threaded) took(cpu quantity.Milli) (seconds, cores float64) {
	threads := max(1, float64(cpu/quantity.Core))
	seconds = (1 - p.part + p.part/threads + p.contention*(threads-1)) / min(1, cpu.Cores())
	return seconds, min(1/seconds, threads)
}

// explored runs attempts of half a minute with one core, so many at a time, and returns the shares of cores that they
// had, in their order, and the explorations that were told.
func explored(p threaded, attempts, together, hosts int, program string, goal predictor.Goal) (
	shares []quantity.Milli, told []string,
) {
	state := fold(predictor.State{}, started("r", 0, goal))
	now := 0.0
	var plan predictor.Plan
	decide := func() {
		plan, state = predictor.Decide(state, laptop(now, hosts))
		for _, decision := range plan.Decisions {
			if decision.What == "size" && strings.Contains(decision.Reason, "exploration") {
				told = append(told, fmt.Sprintf("at %.0f s: %s to %s: %s", now, decision.From, decision.To, decision.Reason))
			}
		}
	}
	for task := 0; task < attempts; task += together {
		hinted := hint("r", "fit", together, now)
		hinted.Program = program
		state = fold(state, hinted)
		decide()
		cpu := plan.Sizings[0].Base.CPU
		seconds, cores := p.took(cpu)
		wall := 30 * seconds
		for i := range together {
			begun := start("r", "fit", task+i, now)
			begun.Grant = plan.Sizings[0].Base
			state = fold(state, begun)
		}
		for end := now + wall; now < end; {
			now = min(now+5, end)
			decide()
		}
		for i := range together {
			line := record("r", "fit", task+i, now, wall*(1+0.01*float64((task+i)%3-1)))
			line.Grant.CPU = cpu
			line.Usage.CPU = time.Duration(cores * float64(line.Usage.Wall))
			state = fold(state, line)
			shares = append(shares, cpu)
		}
	}
	return shares, told
}

// changes is how often the share is another than before.
func changes(shares []quantity.Milli) (count int) {
	for i := range shares[1:] {
		if shares[i] != shares[i+1] {
			count++
		}
	}
	return count
}

// A command of one core has one thread, so nothing tells that a second core would help, until it is tried.
func TestWhetherMoreCoresHelpIsTriedWhereTheyAreIdle(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name            string
		program         threaded
		together, hosts int
		of              string
		goal            predictor.Goal
		tried, settled  quantity.Milli // the largest share that any had, and that of the last
		explorations    int
	}{
		{"it helps", threaded{part: 0.95}, 1, 2, "python3", predictor.Goal{}, 2000, 2000, 1},
		{"it helps up to eight", threaded{part: 1}, 1, 8, "python3", predictor.Goal{}, 8000, 8000, 3},
		{"it has one thread whatever its size", threaded{}, 1, 2, "python3", predictor.Goal{}, 2000, 1000, 1},
		{"it helps too little", threaded{part: 0.3}, 1, 2, "python3", predictor.Goal{}, 2000, 1000, 1},
		{"it is slower", threaded{part: 0.5, contention: 0.6}, 1, 2, "python3", predictor.Goal{}, 2000, 1000, 1},
		{"several at a time, and room for all", threaded{part: 0.95}, 3, 8, "python3", predictor.Goal{}, 2000, 2000, 1},
		{"no core is idle", threaded{part: 0.95}, 2, 2, "python3", predictor.Goal{}, 1000, 1000, 0},
		{"nobody pays for time", threaded{part: 0.95}, 1, 2, "python3", predictor.Goal{Minimise: fact.Cost}, 1000, 1000, 0},
		{
			"a function in Go has threads at any size",
			threaded{part: 0.95},
			1, 2, predictor.GoProgram,
			predictor.Goal{},
			1000,
			1000, 0,
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			shares, told := explored(row.program, 60, row.together, row.hosts, row.of, row.goal)
			most := quantity.Milli(0)
			for _, share := range shares {
				most = max(most, share)
			}
			if last := shares[len(shares)-1]; most != row.tried || last != row.settled || len(told) != row.explorations ||
				changes(shares) > 2*max(row.explorations, 1) {
				t.Errorf("%s cores were tried and %s settled on, after %d explorations and %d changes, want %s, %s and %d: %v\n%s",
					most, last, len(told), changes(shares), row.tried, row.settled, row.explorations, shares, strings.Join(told, "\n"))
			}
		})
	}
}

// What was tried in vain is tried again when it is forgotten, and not before.
func TestWhatWasTriedInVainIsSeldomTriedAgain(t *testing.T) {
	t.Parallel()
	shares, told := explored(threaded{}, 1200, 1, 2, "python3", predictor.Goal{})
	if len(told) < 2 || len(told) > 3 {
		t.Errorf("of 1200 attempts, %d explorations, want one in about 512: %s", len(told), strings.Join(told, "\n"))
	}
	more := 0
	for _, share := range shares {
		if share > quantity.Core {
			more++
		}
	}
	if more > 6*len(told) { // of half a minute each, and limits are lowered after two minutes
		t.Errorf("%d attempts had two cores in %d explorations, want six each at most", more, len(told))
	}
}
