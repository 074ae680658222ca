package spill

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/spillway-ml/spillway/predictor/fact"
)

// BenchmarkChoose has runs whose deadlines are near, each with a few of the tasks that wait.
func BenchmarkChoose(b *testing.B) {
	for _, runs := range []int{1, 10, 100} {
		backlog := Backlog{
			Offer: Offer{
				Tasks: 200, Slots: 8, Wall: 2, Function: 3, Cold: 0.5,
				Scatter: Scatter{Logs: drawnLogs(200, 0.6, 1), Seed: 7},
			},
			Queued: 200, Held: 20, Limit: 100,
		}
		for i := range runs {
			due := 40 + float64(i)/10
			backlog.Runs = append(backlog.Runs, Waiting{
				Run: strconv.Itoa(i), Limited: true, Due: due, Left: due, Part: 1 / float64(runs),
				Goal: fact.Goal{Confidence: 0.9},
			})
		}
		b.Run(fmt.Sprintf("%d runs", runs), func(b *testing.B) {
			for b.Loop() {
				backlog.Choose()
			}
		})
	}
}
