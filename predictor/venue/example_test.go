package venue_test

import (
	"fmt"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/venue"
)

// Ten workers average a small model ten times. Hosts that would have to be started take two minutes for that;
// functions are done by then.
func ExampleChoose() {
	functions := venue.Functions{
		Classes:      []quantity.Bytes{1769 * quantity.MiB},
		PerGiBSecond: quantity.USD * 166667 / 10_000_000_000, MaxDuration: 15 * time.Minute,
	}
	ways := venue.Ways{
		Channels: []venue.Channel{{Name: "S3", BytesPerSecond: 65e6, Latency: 80 * time.Millisecond}},
		Store:    venue.Channel{BytesPerSecond: 65e6},
		Starts:   []venue.Start{{Workers: 10, Takes: 1200 * time.Millisecond}},
	}
	hosts := venue.Hosts{
		Name: "c5.large", Cores: 2, Hour: quantity.USD * 85 / 1000, Store: venue.Channel{BytesPerSecond: 65e6},
		Network: venue.Channel{BytesPerSecond: 120e6, Latency: 500 * time.Microsecond},
		Starts:  []venue.Start{{Workers: 10, Takes: 132 * time.Second}},
	}
	work := venue.Work{Model: quantity.MiB, Rounds: 10, Compute: 20 * time.Second}
	for _, held := range []bool{false, true} {
		if held {
			hosts.Starts = nil
		}
		choice, err := venue.Choose(work, 10, functions, ways, []venue.Hosts{hosts})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("held: %t, spilled: %t\n", held, choice.Spill)
	}
	// Output:
	// held: false, spilled: true
	// held: true, spilled: false
}
