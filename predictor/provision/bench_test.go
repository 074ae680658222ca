package provision

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

func BenchmarkDecide(b *testing.B) {
	for _, hosts := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("hosts=%d", hosts), func(b *testing.B) {
			random := rand.New(rand.NewPCG(15, 8))
			terms := Terms{Function: quantity.USD * 19 / 1_000_000, Delay: 1, Hold: 10}
			for _, host := range []struct {
				tasks float64
				price quantity.Money
			}{{284, 85}, {490, 170}, {771, 340}, {1080, 680}, {3320, 900}} {
				terms.Hosts = append(terms.Hosts, Host{Tasks: host.tasks, Step: host.price * quantity.USD / 60_000})
			}
			pool := make([]Held, hosts)
			for i := range pool {
				pool[i] = Held{Age: random.IntN(22)}
			}
			forecast := Forecast{}
			for i := range 20 {
				forecast.Levels = append(forecast.Levels, (float64(i)+0.5)/20)
			}
			for range terms.Horizon() {
				quantiles := make([]float64, 20)
				for i := range quantiles {
					quantiles[i] = 284 * float64(hosts) * (0.5 + float64(i)/20)
				}
				forecast.Steps = append(forecast.Steps, quantiles)
			}
			decision, err := Decide(terms, pool, forecast)
			if err != nil || decision.Capacity < 284*float64(hosts)*0.8 {
				b.Fatalf("%v tasks are held: %v", decision.Capacity, err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Decide(terms, pool, forecast); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
