// Package pods scales hosts as pods by Kubernetes's own autoscalers.
package pods

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/provision"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/controller/podautoscaler"
	"k8s.io/kubernetes/pkg/controller/podautoscaler/metrics"
	"knative.dev/serving/pkg/autoscaler/aggregation"
	"knative.dev/serving/pkg/autoscaler/scaling"

	"github.com/spillway-ml/spillway/cmd/spillway-eval/internal/spill"
)

// utilisation is Knative's default part of a pod's concurrency that is aimed at; the horizontal autoscaler is given the
// same.
const utilisation = 0.7

// KPA is the decider of Knative's pod autoscaler 0.49.0 with its own windows, at its defaults: a stable window of 60
// s, a panic window of 6 s that counts at twice what the pods can do, up at most a thousandfold and down at most by
// half at once. It looks every 2 s at how many tasks were at work at once; what it wants at the end of the minute is
// done, as for all policies. There is always a pod, and never more than most: without, a minute in which tasks wait
// for hosts that start asks for thousands.
type KPA struct {
	setting spill.Setting
	host    int
	most    int
	now     time.Time
	stable  *aggregation.TimedFloat64Buckets
	panic   *aggregation.TimedFloat64Buckets
	scaler  scaling.UniScaler
	ready   int
}

// NewKPA has a host of the given type as each pod, with room for as many tasks at once as it serves in a batch.
func NewKPA(setting spill.Setting, host, most int) *KPA {
	k := &KPA{
		setting: setting, host: host, most: most, now: epoch,
		stable: aggregation.NewTimedFloat64Buckets(60*time.Second, time.Second),
		panic:  aggregation.NewTimedFloat64Buckets(6*time.Second, time.Second),
	}
	room := float64(setting.Batch[host])
	k.scaler = scaling.New(attribute.NewSet(), noop.NewMeterProvider(), "spillway", "stage", k, k, &scaling.DeciderSpec{
		MaxScaleUpRate: 1000, MaxScaleDownRate: 2, ScalingMetric: "concurrency", TargetValue: utilisation * room,
		TotalValue: room, TargetBurstCapacity: 211, PanicThreshold: 2, StableWindow: 60 * time.Second, Reachable: true,
	})
	return k
}

// epoch is when replays begin.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Next implements spill.Policy.
func (k *KPA) Next(ended spill.Minute, pool []provision.Held) (provision.Decision, error) {
	k.ready = serving(k.setting, pool)
	wanted := max(1, len(pool))
	for second, busy := range ended.Busy {
		k.now = k.now.Add(time.Second)
		k.stable.Record(k.now, busy)
		k.panic.Record(k.now, busy)
		if second%2 == 1 {
			if result := k.scaler.Scale(zap.NewNop().Sugar(), k.now); result.ScaleValid {
				wanted = max(1, int(result.DesiredPodCount))
			}
		}
	}
	return towards(k.setting, k.host, min(wanted, k.most), pool), nil
}

// StableAndPanicConcurrency implements the decider's source of metrics.
func (k *KPA) StableAndPanicConcurrency(_ types.NamespacedName, now time.Time) (stable, panicking float64, err error) {
	return k.stable.WindowAverage(now), k.panic.WindowAverage(now), nil
}

// StableAndPanicRPS implements the decider's source of metrics; it is not asked for requests.
func (k *KPA) StableAndPanicRPS(name types.NamespacedName, now time.Time) (stable, panicking float64, err error) {
	return k.StableAndPanicConcurrency(name, now)
}

// ReadyCount implements the decider's counter of pods.
func (k *KPA) ReadyCount() (int, error) { return k.ready, nil }

// NotReadyCount implements the decider's counter of pods.
func (k *KPA) NotReadyCount() (int, error) { return 0, nil }

// HPA is the replica calculator of Kubernetes's horizontal pod autoscaler, on how many tasks were at work at once,
// every 15 s; as that autoscaler does by default, it goes down to the most that was recommended in the last five
// minutes. Its tolerance of a tenth is not set: the calculator has no way to. There is always a pod, and never more
// than most.
type HPA struct {
	setting    spill.Setting
	host       int
	most       int
	calculator *podautoscaler.ReplicaCalculator
	external   *external
	recent     []int // the recommendations of five minutes
}

const (
	hpaSeconds    = 15
	stabilisation = 5 * 60 / hpaSeconds
)

// NewHPA has a host of the given type as each pod.
func NewHPA(setting spill.Setting, host, most int) *HPA {
	source := &external{}
	return &HPA{
		setting: setting, host: host, most: most, external: source,
		calculator: podautoscaler.NewReplicaCalculator(source,
			listers.NewPodLister(cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)), 5*time.Minute, 30*time.Second),
	}
}

// Next implements spill.Policy.
func (h *HPA) Next(ended spill.Minute, pool []provision.Held) (provision.Decision, error) {
	target := int64(1000 * utilisation * float64(h.setting.Batch[h.host]))
	for from := 0; from+hpaSeconds <= len(ended.Busy); from += hpaSeconds {
		busy := 0.0
		for _, each := range ended.Busy[from : from+hpaSeconds] {
			busy += each / hpaSeconds
		}
		h.external.milli = int64(math.Round(1000 * busy))
		wanted, _, _, err := h.calculator.GetExternalPerPodMetricReplicas(int32(max(1, len(pool))), target, "busy",
			podautoscaler.Tolerances{}, "spillway", &meta.LabelSelector{})
		if err != nil {
			return provision.Decision{}, fmt.Errorf("ask the horizontal pod autoscaler: %w", err)
		}
		h.recent = append(h.recent, max(1, int(wanted)))
	}
	h.recent = h.recent[max(0, len(h.recent)-stabilisation):]
	wanted := h.recent[len(h.recent)-1]
	if wanted < len(pool) {
		wanted = min(len(pool), slices.Max(h.recent))
	}
	return towards(h.setting, h.host, min(wanted, h.most), pool), nil
}

// external has one metric.
type external struct{ milli int64 }

// GetResourceMetric has none.
func (*external) GetResourceMetric(context.Context, core.ResourceName, string, labels.Selector, string) (
	metrics.PodMetricsInfo, time.Time, error,
) {
	return nil, time.Time{}, errNoMetric
}

// GetRawMetric has none.
func (*external) GetRawMetric(string, string, labels.Selector, labels.Selector) (metrics.PodMetricsInfo, time.Time,
	error,
) {
	return nil, time.Time{}, errNoMetric
}

// GetObjectMetric has none.
func (*external) GetObjectMetric(string, string, *autoscaling.CrossVersionObjectReference, labels.Selector) (int64,
	time.Time, error,
) {
	return 0, time.Time{}, errNoMetric
}

// GetExternalMetric has the only one there is, as of no time in particular.
func (e *external) GetExternalMetric(string, string, labels.Selector) ([]int64, time.Time, error) {
	return []int64{e.milli}, epoch, nil
}

var errNoMetric = errors.New("there is only the external metric busy")

func serving(setting spill.Setting, pool []provision.Held) int {
	ready := 0
	for _, held := range pool {
		if held.Age >= setting.Delay {
			ready++
		}
	}
	return max(1, ready)
}

// towards holds so many hosts of one type.
func towards(setting spill.Setting, host, wanted int, pool []provision.Held) provision.Decision {
	target := make([]int, len(setting.Hosts))
	target[host] = wanted
	return spill.Towards(setting.Terms, target, pool)
}
