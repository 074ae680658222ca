package policy

import (
	"math"
	"slices"
	"time"
)

// Utilisation is the part of a host's cores that autoscalers aim at: Knative's default, and given to the horizontal pod
// autoscaler too.
const Utilisation = 0.7

// KPA is the decider of Knative's pod autoscaler at its defaults, for pods that are a host each and do one task per
// core at once:
//
//	wanted = ceil(mean of 60 s / target), not less than half of the hosts that are ready
//	panic  = ceil(mean of 6 s / target) >= 2 x ready: until a minute has passed without, never fewer than before
//
// with target = Utilisation x cores, means of the tasks that are at work or wait, and at most 1,000 times what is
// ready. The source is scaling.autoscaler.Scale and aggregation.TimedFloat64Buckets of knative.dev/serving v0.49.0
// (https://github.com/knative/serving/blob/v0.49.0/pkg/autoscaler/scaling/autoscaler.go). There is always a host. Use
// NewKPA.
type KPA struct {
	target float64
	now    time.Duration
	recent []float64 // the seconds of the stable window
	panics bool
	since  time.Duration // when it was last over the threshold
	floor  int           // while it panics
}

// Knative's defaults: https://github.com/knative/serving/blob/v0.49.0/config/core/configmaps/autoscaler.yaml
const (
	kpaEvery       = 2 * time.Second
	stableWindow   = 60 * time.Second
	panicWindow    = 6 * time.Second
	panicThreshold = 2
	mostUp         = 1000
	mostDown       = 2
)

// NewKPA scales hosts of so many cores.
func NewKPA(cores int) *KPA { return &KPA{target: Utilisation * float64(cores)} }

// Every is two seconds.
func (*KPA) Every() time.Duration { return kpaEvery }

// Hosts implements Policy.
func (k *KPA) Hosts(seen Seen) int {
	k.now += time.Duration(len(seen.Busy)) * time.Second
	k.recent = latest(append(k.recent, seen.Busy...), int(stableWindow/time.Second))
	ready := max(1, float64(seen.Ready))
	least, most := math.Floor(ready/mostDown), math.Ceil(mostUp*ready)
	stable := math.Ceil(average(k.recent) / k.target)
	sudden := math.Ceil(average(latest(k.recent, int(panicWindow/time.Second))) / k.target)
	switch over := sudden/ready >= panicThreshold; {
	case over:
		k.panics, k.since = true, k.now
	case k.panics && k.now > k.since+stableWindow:
		k.panics, k.floor = false, 0
	}
	wanted := int(min(max(stable, least), most))
	if k.panics {
		k.floor = max(k.floor, wanted, int(min(max(sudden, least), most)))
		wanted = k.floor
	}
	return max(1, wanted)
}

// average is rounded as Knative does.
func average(seconds []float64) float64 { return math.Round(mean(seconds)*1e6) / 1e6 }

// latest are the last n values, or all where there are fewer.
func latest(values []float64, n int) []float64 { return values[max(0, len(values)-n):] }

// HPA is Kubernetes's horizontal pod autoscaler, for pods that are a host each:
//
//	wanted = ceil(busy / target), and what is held where busy / (target x held) is within the tolerance of 1
//
// with target = Utilisation x cores and the mean of the tasks that are at work or wait, every 15 s. It goes down to the
// most that was wanted in the last five minutes, and up at once: of the limits to scaling up (twice as many or four
// more in 15 s) it has none. The sources are
// https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/#algorithm-details and
// ReplicaCalculator.GetExternalPerPodMetricReplicas of k8s.io/kubernetes v1.36.5. There is always a host. Use NewHPA.
type HPA struct {
	// Tolerance is the part by which a load may be off before anything changes; not negative.
	Tolerance float64
	target    float64 // thousandths of a task, as Kubernetes counts
	recent    []int
}

const (
	hpaEvery      = 15 * time.Second
	stabilisation = 5 * time.Minute
)

// NewHPA scales hosts of so many cores, with Kubernetes's default tolerance of a tenth.
func NewHPA(cores int) *HPA {
	return &HPA{Tolerance: 0.1, target: math.Floor(1000 * Utilisation * float64(cores))}
}

// Every is 15 seconds.
func (*HPA) Every() time.Duration { return hpaEvery }

// Hosts implements Policy.
func (h *HPA) Hosts(seen Seen) int {
	held := max(1, seen.Held)
	busy, wanted := math.Round(1000*mean(seen.Busy)), held
	if ratio := busy / (h.target * float64(held)); ratio < 1-h.Tolerance || ratio > 1+h.Tolerance {
		wanted = max(1, int(math.Ceil(busy/h.target)))
	}
	h.recent = append(h.recent, wanted)
	h.recent = h.recent[max(0, len(h.recent)-int(stabilisation/hpaEvery)):]
	if wanted < held {
		wanted = min(held, slices.Max(h.recent))
	}
	return wanted
}
