package predictor_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// teamStage is a stage of a team.
func teamStage(team, name string) predictor.StageID {
	id := stageNamed(name)
	id.Team = team
	return id
}

// tasksOf are so many tasks of a run of a team that were put on its queue.
func tasksOf(team, stage string, tasks int, at float64) []predictor.Event {
	run := "run-" + team
	begun := started(run, at, predictor.Goal{Minimise: predictor.Cost})
	begun.Team = team
	return []predictor.Event{
		begun, predictor.Scheduled{Run: run, Stage: teamStage(team, stage), Tasks: tasks, At: after(at)},
	}
}

// slotsOf are those that the stages of a team have at the pool.
func slotsOf(plan predictor.Plan, team string) (slots int) {
	for _, grant := range plan.Grants {
		if grant.Stage.Team == team && grant.Venue == predictor.Pool {
			slots += grant.Slots
		}
	}
	return slots
}

func rowOf(t *testing.T, plan predictor.Plan, team string) predictor.TeamRow {
	t.Helper()
	for _, row := range plan.Teams {
		if row.Name == team {
			return row
		}
	}
	t.Fatalf("no row of team %q: %+v", team, plan.Teams)
	return predictor.TeamRow{}
}

func TestTeamsShareThePoolByTheirWeights(t *testing.T) {
	t.Parallel()
	state := learn(predictor.State{}, "score", 10, 1)
	state = fold(state, append(tasksOf("a", "score", 50, 0), tasksOf("b", "score", 50, 0)...)...)
	snap := laptop(0, 9)
	snap.Functions.Enabled = false
	before := encode(t, state)
	for _, c := range []struct {
		teams []predictor.Team
		a, b  int
	}{
		{[]predictor.Team{{Name: "a"}}, 5, 4},
		{[]predictor.Team{{Name: "a", Weight: 2}, {Name: "b"}}, 6, 3},
		{[]predictor.Team{{Name: "a", Slots: 1}}, 1, 8},
		{[]predictor.Team{{Name: "a", Slots: 2}, {Name: "b", Slots: 3}}, 2, 3},
	} {
		var now predictor.State
		if err := json.Unmarshal(before, &now); err != nil {
			t.Fatal(err)
		}
		snap.Teams = c.teams
		plan, _ := predictor.Decide(now, snap)
		if a, b := slotsOf(plan, "a"), slotsOf(plan, "b"); a != c.a || b != c.b {
			t.Errorf("%+v: a has %d slots and b %d, want %d and %d:\n%s", c.teams, a, b, c.a, c.b,
				strings.Join(reasons(plan), "\n"))
		}
		if row := rowOf(t, plan, "a"); row.Held != c.a || row.Waiting != 50 || row.Why == "" {
			t.Errorf("%+v: the row of a is %+v", c.teams, row)
		}
	}
}

func TestSlotsOfATeamAreBoundedWithWhatRuns(t *testing.T) {
	t.Parallel()
	state := learn(predictor.State{}, "score", 10, 60)
	state = fold(state, tasksOf("a", "score", 9, 0)...)
	state = fold(state, tasksOf("a", "other", 9, 0)...)
	for i := range 3 {
		begun := start("run-a", "score", i, 0)
		begun.Stage = teamStage("a", "score")
		state = fold(state, begun)
	}
	snap := laptop(1, 9)
	snap.Functions.Enabled, snap.Teams = false, []predictor.Team{{Name: "a", Slots: 3}}
	plan, _ := predictor.Decide(state, snap)
	told := strings.Join(reasons(plan), "\n")
	if got := slotsOf(plan, "a"); got > 3 || !strings.Contains(told, "team a has 3 slots of 3") {
		t.Errorf("%d slots of 3:\n%s", got, told)
	}
}

func TestWhoseWorkItIsDecidesNothingWhereNoTeamIsDeclared(t *testing.T) {
	t.Parallel()
	var grants []int
	for _, team := range []string{"", "a"} {
		state := learn(predictor.State{}, "score", 10, 1)
		state = fold(state, tasksOf(team, "score", 50, 0)...)
		plan, _ := predictor.Decide(state, laptop(0, 4))
		if grants = append(grants, slotsOf(plan, team)); plan.Teams != nil {
			t.Errorf("rows of teams: %+v", plan.Teams)
		}
	}
	if grants[0] == 0 || grants[0] != grants[1] {
		t.Errorf("%v slots", grants)
	}
}

// day is a time line of a team whose tasks cost more than a day's money: what its attempts cost on each day, as a venue
// pays it that starts as many as the plan has slots.
type day struct {
	state   predictor.State
	random  *rand.Rand
	price   pricing.Host            // of the host that has an attempt
	others  map[string]pricing.Host // of those on which it runs as well
	running map[int]attempt
	next    int
	left    int
	spent   map[int]quantity.Money // by day
}

type attempt struct {
	began, ends float64
	size        quantity.Size
}

// cost is what holding a size on all hosts for so long costs, and what of it is each other host's, or with told false
// what that costs per hour.
func (d *day) cost(size quantity.Size, held time.Duration, told bool) (
	cost quantity.Money, members []predictor.HostShare,
) {
	cost = d.price.For(size, held)
	for _, name := range slices.Sorted(maps.Keys(d.others)) {
		one := predictor.HostShare{Host: name, PerHour: d.others[name].For(size, time.Hour)}
		if told {
			one = predictor.HostShare{Host: name, Cost: d.others[name].For(size, held)}
			cost += one.Cost
		}
		members = append(members, one)
	}
	return cost, members
}

// step decides at a time, ends what has ended since, and starts what there is a slot for.
func (d *day) step(at float64, snap predictor.Snapshot) predictor.Plan {
	for task, one := range d.running {
		if one.ends > at {
			continue
		}
		wall := one.ends - one.began
		cost, members := d.cost(one.size, time.Duration(wall*float64(time.Second)), true)
		ended := record("run-a", "score", task, one.ends, wall)
		ended.Stage, ended.Cost, ended.Grant, ended.Members = teamStage("a", "score"), cost, one.size, members
		d.state = fold(d.state, ended)
		d.spent[after(one.ends).YearDay()] += cost
		delete(d.running, task)
	}
	snap.Now = after(at)
	var plan predictor.Plan
	plan, d.state = predictor.Decide(d.state, snap)
	for _, grant := range plan.Grants {
		for ; grant.Venue == predictor.Pool && len(d.running) < grant.Slots && d.left > 0; d.left-- {
			begun := start("run-a", "score", d.next, at)
			begun.Stage, begun.Grant = teamStage("a", "score"), grant.Size
			_, begun.Members = d.cost(grant.Size, 0, false)
			d.state = fold(d.state, begun)
			d.running[d.next] = attempt{at, at + 30 + 10*d.random.Float64(), grant.Size}
			d.next++
		}
	}
	return plan
}

// TestADayNeverCostsMoreThanItMay: what ends on a day costs at most what the team may spend on one, across midnight and
// with a state that is saved and read again, also where each attempt runs on several hosts of different prices, and
// what is left of a day is spent as far as it pays a task.
func TestADayNeverCostsMoreThanItMay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		perDay := quantity.Money(rapid.IntRange(15, 60).Draw(t, "tenths of a cent")) * quantity.USD / 1000
		snap := laptop(0, 4)
		snap.Functions.Enabled, snap.Hosts[0].PricePerHour = false, quantity.USD
		others, all := map[string]pricing.Host{}, quantity.USD
		for i := range rapid.IntRange(0, 3).Draw(t, "other hosts") {
			other := snap.Hosts[0]
			other.ID, other.TrainingAddress = fmt.Sprintf("other-%d", i), "10.0.0.2"
			other.PricePerHour = quantity.Money(rapid.IntRange(0, 300).Draw(t, "cents")) * quantity.USD / 100
			others[other.ID] = pricing.Host{PerHour: other.PricePerHour, Capacity: other.Capacity}
			all += other.PricePerHour
			snap.Hosts = append(snap.Hosts, other)
		}
		snap.Hosts[0].TrainingAddress = "10.0.0.1"
		perDay = perDay.Times(all.USD())
		snap.Teams = []predictor.Team{{Name: "a", PerDay: perDay}}
		d := &day{
			random: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)), running: map[int]attempt{}, left: 1000,
			price: pricing.Host{PerHour: quantity.USD, Capacity: snap.Hosts[0].Capacity}, spent: map[int]quantity.Money{},
			others: others,
		}
		put := tasksOf("a", "score", d.left, 0)
		hinted := put[1].(predictor.Scheduled) //nolint:forcetypeassert // it is what tasksOf returns
		hinted.Hosts = len(snap.Hosts)
		d.state = fold(d.state, put[0], hinted)
		midnight := after(0).Truncate(24 * time.Hour).Add(24 * time.Hour).Sub(after(0)).Seconds()
		var told strings.Builder
		for _, begin := range []float64{0, midnight - 200, midnight + 600} {
			for at := begin; at < begin+600; at += 5 {
				plan := d.step(at, snap)
				for _, row := range plan.Teams {
					told.WriteString(row.Why)
					if row.Spent+row.Reserved > perDay {
						t.Fatalf("%s are spent and %s reserved of %s", row.Spent, row.Reserved, perDay)
					}
				}
				if d.random.IntN(50) == 0 {
					saved, err := json.Marshal(d.state)
					if err == nil {
						d.state = predictor.State{}
						err = json.Unmarshal(saved, &d.state)
					}
					if err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		if len(d.spent) != 2 || !strings.Contains(told.String(), "00:00 UTC") {
			t.Fatalf("%v are spent by day, and it is told: %.200s", d.spent, told.String())
		}
		task, _ := d.cost(quantity.Size{CPU: 4 * quantity.Core}, 90*time.Second, true)
		for number, spent := range d.spent {
			if spent > perDay || spent < perDay-2*task && spent < perDay/4 {
				t.Fatalf("day %d costs %s, and may cost %s", number, spent, perDay)
			}
		}
	})
}

// TestATeamsShareIsCalm: a team of which now one and now five short tasks wait changes the slots of another that could
// use all seldom.
func TestATeamsShareIsCalm(t *testing.T) {
	t.Parallel()
	state := learn(predictor.State{}, "score", 10, 0.5)
	state = learn(state, "long", 10, 60)
	state = fold(state, tasksOf("a", "long", 500, 0)...)
	state = fold(state, tasksOf("b", "score", 0, 0)[0])
	snap := laptop(0, 8)
	snap.Functions.Enabled, snap.Teams = false, []predictor.Team{{Name: "a"}, {Name: "b"}}
	random, before, changes := rand.New(rand.NewPCG(1, 2)), -1, 0
	var plan predictor.Plan
	for second := range 60 {
		waiting := 1 + random.IntN(5)
		state = fold(state, predictor.BacklogObserved{
			Stage: teamStage("b", "score"), Tasks: waiting, At: after(float64(second)),
		})
		snap.Now = after(float64(second) + 0.1)
		plan, state = predictor.Decide(state, snap)
		if now := slotsOf(plan, "a"); now != before {
			before, changes = now, changes+1
		}
	}
	if changes > 10 {
		t.Errorf("the slots of one team change %d times a minute, as another comes and goes: %s", changes,
			fmt.Sprint(reasons(plan)))
	}
}

// TestWhatIsLeftOfADayDoesNotWrap: whatever is told of what attempts cost that run, a team that has nothing left is
// given nothing.
func TestWhatIsLeftOfADayDoesNotWrap(t *testing.T) {
	t.Parallel()
	state := learn(predictor.State{}, "score", 10, 1)
	state = fold(state, tasksOf("a", "score", 50, 0)...)
	ended := record("run-a", "score", 0, 1, 1)
	ended.Stage = teamStage("a", "score")
	state = fold(state, ended)
	for task := range 8 {
		begun := start("run-a", "score", 1+task, 1)
		begun.Stage = teamStage("a", "score")
		begun.Members = []predictor.HostShare{{Host: "other", PerHour: math.MaxInt64}}
		state = fold(state, begun)
	}
	snap := laptop(0, 8)
	snap.Functions.Enabled, snap.Teams = false, []predictor.Team{{Name: "a", PerDay: quantity.USD}}
	snap.Now, snap.Hosts[0].PricePerHour = after(1e7), quantity.USD
	plan, _ := predictor.Decide(state, snap)
	if got, row := slotsOf(plan, "a"), rowOf(t, plan, "a"); got > 0 || row.Reserved <= quantity.USD {
		t.Errorf("%d slots, with %s reserved", got, row.Reserved)
	}
}
