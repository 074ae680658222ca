package size_test

import (
	"cmp"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// learned is what n attempts teach that had so many cores, used this of them and were held back for this part.
func learned(cores, rate, held float64, n int) usage.Speed {
	var tries usage.Tries
	for range n {
		tries.Add(usage.Try{Cores: cores, Seconds: 2, Rate: rate, Held: held}, usage.Features{}, nil)
	}
	return tries.Learn(usage.Duration{}, true)
}

// onTwo is a stage of which one and two cores are known, and which is so many times as fast on two.
func onTwo(faster float64) usage.Speed {
	var tries usage.Tries
	for range 8 {
		tries.Add(usage.Try{Cores: 1, Seconds: 2, Rate: 1, Held: 2 - 2/faster}, usage.Features{}, nil)
		tries.Add(usage.Try{Cores: 2, Seconds: 2 / faster, Rate: faster}, usage.Features{}, nil)
	}
	return tries.Learn(usage.Duration{}, true)
}

func TestAShareOfCoresIsChosenAlongTheCurve(t *testing.T) {
	t.Parallel()
	const core = quantity.Core
	for _, row := range []struct {
		name  string
		known size.CPU
		want  quantity.Milli
	}{
		{"nothing known", size.CPU{}, 400},
		{"too few rates", size.CPU{Speed: learned(1, 0.3, 0, 2)}, 400},
		{"but held back", size.CPU{Speed: learned(0.3, 0.3, 0.7, 2), HeldBack: 300}, core},
		{"what it uses", size.CPU{Speed: learned(1, 0.31, 0, 8), Rate: 310}, 350},
		{"what it uses, though its tasks are many", size.CPU{Speed: learned(1, 0.31, 0, 8), Rate: 310, Tasks: 100}, 350},
		{"held back by what it uses in the mean", size.CPU{Speed: learned(0.3, 0.3, 0.5, 8), Rate: 300, HeldBack: 300}, core},
		{"nearly a core is one", size.CPU{Speed: learned(1, 0.86, 0, 8), Rate: 860}, core},
		{"and a little more", size.CPU{Speed: learned(2, 1.04, 0, 8), Rate: 1040}, core},
		{"nearly a core never held back", size.CPU{Speed: learned(1, 0.99, 0, 8), Rate: 990}, core},
		{"two where they are worth it", size.CPU{Speed: onTwo(1.9), Rate: 1900}, 2 * core},
		{"one where they are not", size.CPU{Speed: onTwo(1.3), Rate: 1300}, core},
		{"one each where many wait", size.CPU{Speed: onTwo(1.9), Rate: 1900, Tasks: 40}, core},
		{"two where memory is short", size.CPU{Speed: onTwo(1.9), Rate: 1900, Tasks: 40, Slots: 2}, 2 * core},
		{"tried where it may be", size.CPU{Speed: learned(1, 1, 0.9, 8), Rate: 1000, HeldBack: core}, 2 * core},
		{"not where many wait", size.CPU{Speed: learned(1, 1, 0.9, 8), Rate: 1000, HeldBack: core, Tasks: 40}, core},
		{"the whole host", size.CPU{Speed: learned(0, 9, 0, 8), Rate: 9000}, 4 * core},
		{"never nothing", size.CPU{Speed: learned(1, 0.001, 0, 8), Rate: 1}, size.LeastCPU},
		{"short tasks share a core", size.CPU{Speed: learned(1, 1, 0, 8), Rate: core, Wall: 0.010}, 500},
		{"shorter ones more", size.CPU{Speed: learned(1, 1, 0, 8), Rate: core, Wall: 0.001}, 100},
		{"two in a hurry", size.CPU{Speed: onTwo(1.3), Rate: 1300, Worth: size.MostWorth}, 2 * core},
		{"two where the deadline is near", size.CPU{Speed: onTwo(1.3), Rate: 1300, Left: 1.5}, 2 * core},
		{"one where it cannot be met", size.CPU{Speed: onTwo(1.3), Rate: 1300, Left: -1}, core},
		{"two where it cannot but they pay", size.CPU{Speed: onTwo(1.9), Rate: 1900, Worth: 0.01, Left: -1}, 2 * core},
		{
			"two where it is near for one core, though not for the two that the time is of",
			size.CPU{Speed: onTwo(1.3), Rate: 1300, At: 2 * core, Left: 2.2},
			2 * core,
		},
		{"one where it is far", size.CPU{Speed: onTwo(1.3), Rate: 1300, Left: 60}, core},
		{"one where time is worth little", size.CPU{Speed: onTwo(1.9), Rate: 1900, Worth: 0.01}, core},
		{"no less for no further slot", size.CPU{Speed: learned(1, 0.7, 0, 8), Rate: 700, Tasks: 2, Room: 1333}, core},
		{"less for one", size.CPU{Speed: learned(1, 0.7, 0, 8), Rate: 700, Tasks: 4, Room: 2800}, 700},
		{"longer ones do not", size.CPU{Speed: learned(1, 1, 0, 8), Rate: core, Wall: 0.1}, core},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			row.known.Most, row.known.Room = 4*core, cmp.Or(row.known.Room, 4*core)
			row.known.Wall, row.known.Worth = cmp.Or(row.known.Wall, 2), cmp.Or(row.known.Worth, 1)
			if got := row.known.Share(400); got != row.want {
				t.Errorf("%+v: got %s cores, want %s: %s", row.known, got, row.want, row.known.Why(got))
			}
		})
	}
}

// TestWhatIsHeldIsKeptWhileItIsAboutAsGood holds each share in turn: the choice is kept where asked again.
func TestWhatIsHeldIsKeptWhileItIsAboutAsGood(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		part := rapid.Float64Range(0, 1)
		cores := rapid.SampledFrom([]float64{0, 0.2, 0.5, 1, 2, 4}).Draw(rt, "cores")
		c := size.CPU{
			Speed: learned(cores, part.Draw(rt, "rate")*max(1, cores), part.Draw(rt, "held"), 8),
			Rate:  quantity.Milli(rapid.IntRange(1, 4000).Draw(rt, "rate90")), Wall: 10 * part.Draw(rt, "wall"),
			Most: 8 * quantity.Core, Room: quantity.Milli(rapid.IntRange(0, 16000).Draw(rt, "room")),
			Tasks: float64(rapid.IntRange(0, 1000).Draw(rt, "tasks")), Worth: size.MostWorth * part.Draw(rt, "worth"),
			Left: rapid.SampledFrom([]float64{0, -1}).Draw(rt, "left"),
		}
		chosen := c.Share(quantity.Core)
		if chosen < size.LeastCPU || chosen > c.Most {
			rt.Fatalf("got %s cores of %s", chosen, c.Most)
		}
		c.Held = chosen
		if again := c.Share(quantity.Core); again != chosen {
			rt.Errorf("%+v: %s cores, and once these are held %s", c, chosen, again)
		}
	})
}

func TestAShareIsToldByHowFastItIs(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		known size.CPU
		share quantity.Milli
		want  string
	}{
		{size.CPU{Speed: onTwo(1.9), Most: 2000, Room: 2000, Tasks: 1}, 2000, "1.9 times as fast on 2 cores as on 1 core"},
		{
			size.CPU{Speed: onTwo(1.9), Most: 2000, Room: 2000, Tasks: 40},
			1000,
			"0.53 times as fast on 1 core as on 2 cores, and 40 tasks for 2 cores",
		},
		{
			size.CPU{Speed: learned(0.4, 0.4, 0.6, 8), HeldBack: 400, Most: 2000},
			1000,
			"held back by 0.4 cores, 2.5 times as fast on 1 core as on 0.4 cores",
		},
	} {
		if got := row.known.Why(row.share); got != row.want {
			t.Errorf("got %q, want %q", got, row.want)
		}
	}
}

// TestTimeThatIsWorthMoreGivesNoFewerCores compares what an attempt is given that keeps nobody waiting.
func TestTimeThatIsWorthMoreGivesNoFewerCores(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		part := rapid.Float64Range(0, 1)
		c := size.CPU{
			Speed: onTwo(1 + part.Draw(rt, "faster")), Rate: quantity.Milli(rapid.IntRange(1, 2000).Draw(rt, "rate")),
			Wall: 1 + 10*part.Draw(rt, "wall"), Most: 8 * quantity.Core, Room: 8 * quantity.Core, Tasks: 1,
			Worth: size.MostWorth * part.Draw(rt, "worth"),
		}
		more, soon := c, c
		more.Worth += (size.MostWorth - c.Worth) * part.Draw(rt, "more")
		soon.Left = -1
		if less, least := c.Share(quantity.Core), more.Share(quantity.Core); least < less {
			rt.Errorf("%+v: %s cores, and %s where time is worth %v", c, less, least, more.Worth)
		}
		if less, hurried := c.Share(quantity.Core), soon.Share(quantity.Core); hurried < less {
			rt.Errorf("%+v: %s cores, and %s where the deadline has passed", c, less, hurried)
		}
	})
}

func TestWhatASecondIsWorth(t *testing.T) {
	t.Parallel()
	const usual, cent = quantity.USD * 44625 / 1_000_000, quantity.USD / 100
	for _, row := range []struct {
		name       string
		hour, core quantity.Money
		minimise   fact.Objective
		want       float64
	}{
		{"as usual", quantity.USD, usual, "", 1},
		{"no price is the usual one", quantity.USD, 0, "", 1},
		{"an hour is worth three times as much", 3 * quantity.USD, usual, "", 3},
		{"cores are twice as dear", quantity.USD, 2 * usual, "", 0.5},
		{"cores are free or nearly", quantity.USD, 1, "", size.MostWorth},
		{"nothing", 0, usual, "", 0},
		{"a run that minimises cost", 3 * quantity.USD, cent, fact.Cost, 0},
		{"one that minimises latency", cent, usual, fact.Latency, size.MostWorth},
	} {
		if got := size.Worth(row.hour, row.core, row.minimise); got < row.want*(1-1e-9) || got > row.want*(1+1e-9) {
			t.Errorf("%s: got %v, want %v", row.name, got, row.want)
		}
	}
}
