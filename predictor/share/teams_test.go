package share

import (
	"cmp"
	"math"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

var oneCore = quantity.Size{CPU: quantity.Core}

// coresOf is one host of so many cores.
func coresOf(cores int) []plan.Host {
	return []plan.Host{{ID: "a", Capacity: quantity.Size{CPU: quantity.Milli(cores) * quantity.Core}}}
}

// wants is a stage of a team with so many tasks of a core that wait, and running ones.
func wants(team, tasks, running int) Claim {
	return Claim{
		Size: oneCore, Tasks: tasks, Running: running, On: map[string]int{"a": running}, Wall: 1, Slack: math.Inf(1),
		Team: team,
	}
}

func totals(given []Slots) (slots []int) {
	for _, one := range given {
		slots = append(slots, one.Total)
	}
	return slots
}

// drawClaims are stages of so many teams, of one core each unless mixed, some of whose attempts run.
func drawClaims(t *rapid.T, teams int, mixed bool) []Claim {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Claim {
		c := wants(rapid.IntRange(0, teams-1).Draw(t, "team"), rapid.IntRange(0, 12).Draw(t, "tasks"), 0)
		c.Wall = rapid.Float64Range(0.1, 9).Draw(t, "wall")
		if mixed {
			c.Size.CPU *= quantity.Milli(rapid.IntRange(1, 3).Draw(t, "cores"))
			c.Running = rapid.IntRange(0, 3).Draw(t, "running")
			c.Tasks, c.On = c.Tasks+c.Running, map[string]int{"a": c.Running}
			c.Kept = rapid.IntRange(0, 4).Draw(t, "kept")
		}
		return c
	}), 1, 6).Draw(t, "claims")
}

// Where nobody else wants anything, who a stage belongs to changes nothing.
func TestOneTeamWithoutBoundsSharesAsIfThereWereNone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		claims := drawClaims(t, 1, true)
		hosts := coresOf(rapid.IntRange(0, 12).Draw(t, "cores"))
		want := Hosts(hosts, claims)
		for _, teams := range [][]Team{{{}}, {{Weight: 3}, {Weight: 1}, {}}} {
			if diff := gocmp.Diff(want, Teams(hosts, claims, teams), cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("among %v (-without +with):\n%s", teams, diff)
			}
		}
	})
}

// drawTeams are two to four teams with weights, of which some have a bound of slots.
func drawTeams(t *rapid.T) []Team {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Team {
		return Team{
			Weight: float64(rapid.IntRange(1, 5).Draw(t, "weight")),
			Slots:  rapid.SampledFrom([]int{0, 0, 1, 3, 6}).Draw(t, "slots"),
		}
	}), 2, 4).Draw(t, "teams")
}

// byTeam adds up what stages of teams have and could use.
func byTeam(claims []Claim, given []Slots, teams []Team) (has, could []int) {
	has, could = make([]int, len(teams)), make([]int, len(teams))
	for i, c := range claims {
		has[c.Team] += given[i].Total
		could[c.Team] += c.Needed()
	}
	for i, team := range teams {
		if team.Slots > 0 {
			could[i] = min(could[i], team.Slots)
		}
	}
	return has, could
}

// contested reports whether two teams want something: what one has alone is shared by Hosts, where every stage has a
// slot, whether or not it fits.
func contested(could []int) bool {
	return len(could)-len(slices.DeleteFunc(slices.Clone(could), func(n int) bool { return n > 0 })) > 1
}

// TestSlotsAreSharedFairlyAmongTeams checks what makes an allocation of whole slots weighted max-min fair: nothing is
// left over while somebody could use it, and no slot can be taken from a team and given to one that could use it and
// would still have less for its weight than the giver.
func TestSlotsAreSharedFairlyAmongTeams(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		teams := drawTeams(t)
		claims := drawClaims(t, len(teams), false)
		cores := rapid.IntRange(len(teams), 16).Draw(t, "cores")
		given := Teams(coresOf(cores), claims, teams)
		has, could := byTeam(claims, given, teams)
		if !contested(could) {
			return
		}
		sum := 0
		for i := range teams {
			sum += has[i]
			if has[i] > could[i] {
				t.Fatalf("team %d has %d slots and could use %d", i, has[i], could[i])
			}
		}
		if sum > cores {
			t.Fatalf("%d slots are given of %d cores", sum, cores)
		}
		for i := range teams {
			if has[i] == could[i] {
				continue
			}
			if sum < cores {
				t.Fatalf("a core is left over, and team %d could use it: %v of %v", i, has, could)
			}
			for j := range teams {
				if float64(has[j]-1)/teams[j].Weight > float64(has[i])/teams[i].Weight {
					t.Fatalf("team %d has %v, and team %d has %v with weights %v and %v", i, has[i], j, has[j], teams[i].Weight,
						teams[j].Weight)
				}
			}
		}
	})
}

// filled is what water-filling gives each team of so many cores that can be divided at will, found from the levels at
// which a team has all that it could use: an oracle that gives no slot at a time.
func filled(cores float64, could []int, teams []Team) []float64 {
	order := make([]int, len(teams))
	for i := range order {
		order[i] = i
	}
	level := func(i int) float64 { return float64(could[i]) / teams[i].Weight }
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(level(a), level(b)) })
	weights := 0.0
	for _, team := range teams {
		weights += team.Weight
	}
	shares := make([]float64, len(teams))
	for _, i := range order {
		shares[i] = min(float64(could[i]), cores*teams[i].Weight/weights)
		cores, weights = cores-shares[i], weights-teams[i].Weight
	}
	return shares
}

func TestSharesOfTeamsAreThoseOfWaterFilling(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		teams := drawTeams(t)
		claims := drawClaims(t, len(teams), false)
		cores := rapid.IntRange(len(teams), 40).Draw(t, "cores")
		has, could := byTeam(claims, Teams(coresOf(cores), claims, teams), teams)
		if !contested(could) {
			return
		}
		for i, want := range filled(float64(cores), could, teams) {
			if far := math.Abs(float64(has[i]) - want); far >= float64(len(teams)) {
				t.Fatalf("team %d has %d slots, and water-filling gives %.2f: %v of %v", i, has[i], want, has, could)
			}
		}
	})
}

func TestMoreWeightIsNeverFewerSlots(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		teams := drawTeams(t)
		claims := drawClaims(t, len(teams), false)
		hosts := coresOf(rapid.IntRange(1, 16).Draw(t, "cores"))
		before, _ := byTeam(claims, Teams(hosts, claims, teams), teams)
		who := rapid.IntRange(0, len(teams)-1).Draw(t, "who")
		teams = slices.Clone(teams)
		teams[who].Weight += float64(rapid.IntRange(1, 9).Draw(t, "more"))
		if after, _ := byTeam(claims, Teams(hosts, claims, teams), teams); after[who] < before[who] {
			t.Fatalf("team %d had %d slots and has %d with more weight", who, before[who], after[who])
		}
	})
}

// No bound is passed, whatever runs and whatever sizes are: what runs counts, and money is never promised twice.
func TestATeamNeverHasMoreSlotsThanItMay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		teams := drawTeams(t)
		claims := drawClaims(t, len(teams), true)
		for i := range teams {
			if rapid.Bool().Draw(t, "limited") {
				teams[i].Limited, teams[i].Money = true, quantity.Money(rapid.IntRange(0, 20).Draw(t, "money"))
			}
		}
		for i := range claims {
			claims[i].Next = quantity.Money(rapid.IntRange(0, 4).Draw(t, "next"))
			claims[i].Lone = rapid.Bool().Draw(t, "lone")
			claims[i].Holds = rapid.Bool().Draw(t, "holds")
		}
		given := Teams(coresOf(rapid.IntRange(0, 12).Draw(t, "cores")), claims, teams)
		used, running, paid, lone := make([]int, len(teams)), make([]int, len(teams)), make([]quantity.Money, len(teams)),
			make([]int, len(teams))
		for i, c := range claims {
			used[c.Team] += max(given[i].Total, c.Running)
			running[c.Team] += c.Running
			if c.Lone {
				lone[c.Team] += given[i].Total
			} else {
				paid[c.Team] += quantity.Money(given[i].Total) * c.Next
			}
		}
		for i, team := range teams {
			if team.Slots > 0 && used[i] > max(team.Slots, running[i]) {
				t.Fatalf("team %d has %d slots of %d, and %d run", i, used[i], team.Slots, running[i])
			}
			if team.Limited && (paid[i] > team.Money || lone[i] > 1) {
				t.Fatalf("team %d may begin what costs %d of %d, and %d of which nobody knows", i, paid[i], team.Money, lone[i])
			}
		}
	})
}

// TestWhatWasLentComesBack is a time line: one team has all that there is, and another comes.
func TestWhatWasLentComesBack(t *testing.T) {
	t.Parallel()
	teams := []Team{{Weight: 1}, {Weight: 1}}
	for _, row := range []struct {
		what    string
		running [2]int
		tasks   [2]int
		want    []int
		bound   Bound // of the first team
	}{
		{"alone it has all", [2]int{8, 0}, [2]int{20, 0}, []int{8, 0}, Unbounded},
		{"another comes: no further task begins in half of what runs", [2]int{8, 0}, [2]int{20, 9}, []int{4, 1}, ByOthers},
		{"two have ended", [2]int{6, 1}, [2]int{18, 9}, []int{4, 2}, ByOthers},
		{"all that was lent is back", [2]int{4, 4}, [2]int{16, 12}, []int{4, 4}, ByOthers},
		{"the other wants less", [2]int{4, 2}, [2]int{16, 2}, []int{6, 2}, ByOthers},
		{"it is alone again", [2]int{6, 0}, [2]int{16, 0}, []int{8, 0}, Unbounded},
	} {
		claims := []Claim{wants(0, row.tasks[0], row.running[0]), wants(1, row.tasks[1], row.running[1])}
		given := Teams(coresOf(8), claims, teams)
		if diff := gocmp.Diff(row.want, totals(given)); diff != "" || given[0].Bound != row.bound {
			t.Errorf("%s: bound %d, want %d (-want +got):\n%s", row.what, given[0].Bound, row.bound, diff)
		}
	}
}

// TestStagesOfABoundedTeamTakeTurns is a time line of two stages whose team has one slot.
func TestStagesOfABoundedTeamTakeTurns(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		what    string
		running [2]int
		holds   [2]bool
		since   [2]int
		want    []int
	}{
		{"the first comes first", [2]int{0, 0}, [2]bool{}, [2]int{0, 0}, []int{1, 0}},
		{"it keeps it", [2]int{1, 0}, [2]bool{true, false}, [2]int{5, 0}, []int{1, 0}},
		{"its turn is over, and what runs goes on", [2]int{1, 0}, [2]bool{}, [2]int{5, 0}, []int{0, 0}},
		{"the other has it", [2]int{0, 0}, [2]bool{}, [2]int{5, 0}, []int{0, 1}},
		{"and the first again", [2]int{0, 0}, [2]bool{}, [2]int{5, 9}, []int{1, 0}},
	} {
		claims := []Claim{wants(0, 9, row.running[0]), wants(0, 9, row.running[1])}
		for i := range claims {
			claims[i].Holds, claims[i].Since = row.holds[i], fact.Instant(row.since[i])
		}
		if diff := gocmp.Diff(row.want, totals(Teams(coresOf(8), claims, []Team{{Slots: 1}}))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.what, diff)
		}
	}
}
