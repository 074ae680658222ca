package baseline

import (
	"sync"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/series"
	"k8s.io/autoscaler/vertical-pod-autoscaler/pkg/recommender/logic"
	"k8s.io/autoscaler/vertical-pod-autoscaler/pkg/recommender/model"
)

// Recommender is the real recommender of the Kubernetes Vertical Pod Autoscaler with its own defaults: its Target is
// the limit.
//
// The series is scaled so that the largest value it will ever show is fullCores cores, or fullBytes of memory: then the
// recommender's absolute constants (at least 25 mCPU and 250 MiB, histograms of 10 mCPU to 1,000 cores and of 10 MB to
// 1 TB, 100 MiB more after an out-of-memory kill) cut nothing off. The scale tells it nothing: all else in it is
// relative. It sees every point at its recorded time, and for memory an out-of-memory kill at each tick over the limit.
type Recommender struct {
	recommend logic.PodResourceRecommender
	state     *model.AggregateContainerState
	container *model.ContainerState
	resource  model.ResourceName
	unit      float64 // the recommender's amount of one unit of the series
	limit     float64
}

// The largest value on the recommender's scale, just below the end of its histograms.
const (
	fullCores = 900
	fullBytes = 900e9
)

// The recommender's defaults (its flags; vertical-pod-autoscaler 1.7.3, pkg/recommender/config).
const (
	marginFraction     = 0.15
	leastMilliCPU      = 25
	leastMiB           = 250
	targetPercentile   = 0.9
	lowerPercentile    = 0.5
	upperPercentile    = 0.95
	confidenceInterval = 24 * time.Hour
)

// NewCPURecommender returns the recommender for CPU. The limit is first until the first point; largest, a positive
// number, is the most that the series and its first limit reach.
func NewCPURecommender(first, largest float64) *Recommender {
	return newRecommender(model.ResourceCPU, first, float64(model.CPUAmountFromCores(fullCores))/largest)
}

// NewMemoryRecommender returns the recommender for memory, likewise.
func NewMemoryRecommender(first, largest float64) *Recommender {
	return newRecommender(model.ResourceMemory, first, float64(model.MemoryAmountFromBytes(fullBytes))/largest)
}

// configure sets the recommender's defaults. It keeps them in a variable of its package that it would otherwise set,
// unguarded, on first use.
var configure = sync.OnceFunc(func() { model.InitializeAggregationsConfig(model.GetAggregationsConfig()) })

func newRecommender(resource model.ResourceName, first, unit float64) *Recommender {
	configure()
	state := model.NewAggregateContainerState()
	return &Recommender{
		recommend: logic.CreatePodResourceRecommender(logic.RecommendationConfig{
			SafetyMarginFraction: marginFraction, PodMinCPUMillicores: leastMilliCPU, PodMinMemoryMb: leastMiB,
			TargetCPUPercentile: targetPercentile, LowerBoundCPUPercentile: lowerPercentile,
			UpperBoundCPUPercentile: upperPercentile,
			ConfidenceIntervalCPU:   confidenceInterval,
			TargetMemoryPercentile:  targetPercentile, LowerBoundMemoryPercentile: lowerPercentile,
			UpperBoundMemoryPercentile: upperPercentile,
			ConfidenceIntervalMemory:   confidenceInterval,
		}),
		state:     state,
		container: model.NewContainerState(model.Resources{resource: model.ResourceAmount(first * unit)}, state),
		resource:  resource,
		unit:      unit,
		limit:     first,
	}
}

// Limit is the recommended target.
func (r *Recommender) Limit() float64 { return r.limit }

// Observe gives the recommender a sample.
func (r *Recommender) Observe(use series.Point, over bool) {
	amount := func(value float64) model.ResourceAmount { return model.ResourceAmount(value * r.unit) }
	r.container.AddSample(&model.ContainerUsageSample{
		MeasureStart: use.At, Usage: amount(use.Value),
		Resource: r.resource,
	})
	if over && r.resource == model.ResourceMemory {
		// An error means that the kill is older than the aggregation window; points come in the order of time, so it never
		// is.
		_ = r.container.RecordOOM(use.At, amount(r.limit))
	}
	const name = "container"
	target := r.recommend.GetRecommendedPodResources(model.ContainerNameToAggregateStateMap{name: r.state})[name].Target
	r.limit = float64(target[r.resource]) / r.unit
}
