package venue

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// allWays are those of the tests with every pattern.
func allWays() Ways {
	w := ways()
	for _, pattern := range []Pattern{AllGather, ParameterServer} {
		for _, channel := range ways().Channels {
			channel.Pattern = pattern
			w.Channels = append(w.Channels, channel)
		}
	}
	return w
}

// TestOptionsAreWhatNothingBeats compares the front with every way there is.
func TestOptionsAreWhatNothingBeats(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		work := Work{
			Model: quantity.Bytes(rapid.IntRange(1, 1e9).Draw(t, "model")), Rounds: rapid.IntRange(1, 500).Draw(t, "rounds"),
			Data:    quantity.Bytes(rapid.IntRange(0, 1e10).Draw(t, "data")),
			Compute: time.Duration(rapid.IntRange(0, 1e11).Draw(t, "compute")),
		}
		most := rapid.IntRange(1, 12).Draw(t, "workers")
		front, err := Options(work, most, lambda(), allWays(), machines())
		if err != nil {
			t.Fatal(err)
		}
		for i, o := range front {
			if i > 0 && (o.Time <= front[i-1].Time || o.Cost >= front[i-1].Cost) {
				t.Fatalf("%s beats %s, or is beaten by it", o, front[i-1])
			}
		}
		beaten := func(e Estimate) bool {
			for _, o := range front {
				if o.Time <= e.Time && o.Cost <= e.Cost {
					return true
				}
			}
			return false
		}
		for workers := 1; workers <= most; workers++ {
			for _, hosts := range machines() {
				if e := work.OnHosts(hosts, workers); !beaten(e) {
					t.Fatalf("%d workers on %s are left out: %+v", workers, hosts.Name, e)
				}
			}
			for _, class := range lambda().Classes {
				for _, channel := range allWays().Channels {
					if e, fits := work.InFunctions(lambda(), class, allWays(), channel, workers); fits && !beaten(e) {
						t.Fatalf("%d functions of %s with %s are left out: %+v", workers, class, channel.Name, e)
					}
				}
			}
		}
	})
}

// TestPatternsTakeWhatTheirTransfersTake goes through the transfers of four workers one by one: 8 MB at 10 MB/s and
// 50 ms.
func TestPatternsTakeWhatTheirTransfersTake(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[Pattern]float64{
		ScatterReduce:   10 * (0.2 + 0.05), // puts 3 quarters, gets 3, puts the sum, gets 3
		AllGather:       4 * (0.8 + 0.05),  // puts its own, gets 3
		ParameterServer: 2 * (0.8 + 0.05),  // sends its own, receives the sum
	} {
		channel := Channel{Pattern: pattern, BytesPerSecond: 10e6, Latency: 50 * time.Millisecond}
		work := Work{Model: 8e6, Rounds: 1}
		got, _ := work.InFunctions(lambda(), quantity.GiB, Ways{Store: ObjectStore()}, channel, 4)
		if seconds := got.Time.Seconds(); seconds < want-1e-6 || seconds > want+1e-6 || got.Exchange != 1 {
			t.Errorf("%s: %v s, all of it exchange: %v; want %v s", pattern, seconds, got.Exchange, want)
		}
	}
}

func TestAnOptionSaysWhatItIs(t *testing.T) {
	t.Parallel()
	work := Work{Model: quantity.MiB, Rounds: 3, Compute: 200 * time.Second}
	front, err := Options(work, 4, lambda(), allWays(), nil)
	if err != nil || len(front) < 2 {
		t.Fatalf("%v, %v", front, err)
	}
	fast := front[0].String()
	if !strings.Contains(fast, "4 functions of") || !strings.Contains(fast, "exchange through") {
		t.Errorf("the fastest is %s", fast)
	}
	if _, err := Options(Work{}, 4, lambda(), allWays(), nil); err == nil {
		t.Error("no training has options")
	}
}
