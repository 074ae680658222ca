package partition_test

import (
	"testing"

	"github.com/spillway-ml/spillway/workers/partition"
)

func TestTheSlowestLinkIsOfTheLeastBandwidthAndTheGreatestLatency(t *testing.T) {
	t.Parallel()
	links := partition.Links{
		Between: partition.Link{BytesPerSecond: 5, Latency: 2},
		Pairs: map[[2]string]partition.Link{
			{"a", "b"}: {BytesPerSecond: 3, Latency: 1},
			{"a", "c"}: {Latency: 7}, // without a bandwidth it takes no time for the bytes
		},
	}
	if got := links.Slowest(); got.BytesPerSecond != 3 || got.Latency != 7 {
		t.Errorf("got %+v", got)
	}
	if got := (partition.Links{}).Slowest(); got != (partition.Link{}) {
		t.Errorf("of none: %+v", got)
	}
}
