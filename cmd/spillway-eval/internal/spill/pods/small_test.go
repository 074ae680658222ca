package pods

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor/sim/policy"
	"go.uber.org/zap"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/controller/podautoscaler"

	"github.com/spillway-ml/spillway/cmd/spillway-eval/internal/spill"
)

// loads are made traces of how many tasks are there, second by second.
func loads() map[string]func(second int) float64 {
	random := rand.New(rand.NewPCG(3, 4))
	return map[string]func(int) float64{
		"steady": func(int) float64 { return 7 },
		"steps":  func(s int) float64 { return float64(s / 200 % 5 * 40) },
		"waves":  func(s int) float64 { return 50 + 50*math.Sin(float64(s)/90) },
		"burst": func(s int) float64 {
			if s%400 < 9 {
				return 300
			}
			return 1
		},
		"noise":   func(int) float64 { return random.ExpFloat64() * 20 },
		"nothing": func(s int) float64 { return max(0, 30-float64(s)/10) },
	}
}

const seconds = 1800

// TestTheSmallKPADecidesAsKnativeDoes has both asked every two seconds; hosts are ready 20 s after they are wanted.
func TestTheSmallKPADecidesAsKnativeDoes(t *testing.T) {
	t.Parallel()
	for name, load := range loads() {
		actual, small := NewKPA(spill.Inception(), 0, math.MaxInt), policy.NewKPA(1)
		ready := make([]int, seconds+20) // by the second
		var since []float64
		for s := range seconds {
			busy := load(s)
			since = append(since, busy)
			actual.now = actual.now.Add(time.Second)
			actual.stable.Record(actual.now, busy)
			actual.panic.Record(actual.now, busy)
			actual.ready = max(ready[s], 1)
			if s%2 == 0 {
				ready[s+20] = ready[s+19]
				continue
			}
			result := actual.scaler.Scale(zap.NewNop().Sugar(), actual.now)
			want := max(1, int(result.DesiredPodCount))
			if got := small.Hosts(policy.Seen{Busy: since, Held: want, Ready: actual.ready}); !result.ScaleValid || got != want {
				t.Fatalf("%s: at second %d: %d hosts, and Knative wants %d", name, s, got, want)
			}
			since, ready[s+20] = nil, want
		}
	}
}

// TestTheSmallHPADecidesAsKubernetesDoes has no tolerance, which the calculator of Kubernetes cannot be given.
func TestTheSmallHPADecidesAsKubernetesDoes(t *testing.T) {
	t.Parallel()
	for name, load := range loads() {
		actual, small := NewHPA(spill.Inception(), 0, math.MaxInt), policy.NewHPA(1)
		small.Tolerance = 0
		held := 1
		var recent []int
		var since []float64
		for s := range seconds {
			if since = append(since, load(s)); len(since) < hpaSeconds {
				continue
			}
			busy := 0.0
			for _, each := range since {
				busy += each / hpaSeconds
			}
			actual.external.milli = int64(math.Round(1000 * busy))
			calculated, _, _, err := actual.calculator.GetExternalPerPodMetricReplicas(int32(held), 700, "busy",
				podautoscaler.Tolerances{}, "spillway", &meta.LabelSelector{})
			if err != nil {
				t.Fatal(err)
			}
			want := max(1, int(calculated))
			recent = append(recent, want)
			if want < held { // down to the most that was recommended in five minutes
				for _, earlier := range recent[max(0, len(recent)-stabilisation):] {
					want = min(held, max(want, earlier))
				}
			}
			if got := small.Hosts(policy.Seen{Busy: since, Held: held, Ready: held}); got != want {
				t.Fatalf("%s: at second %d: %d hosts, and Kubernetes wants %d", name, s, got, want)
			}
			since, held = nil, want
		}
	}
}
