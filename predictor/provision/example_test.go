package provision_test

import (
	"fmt"

	"github.com/spillway-ml/spillway/predictor/provision"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Hosts that serve a hundred tasks a minute cost 0.3 cents a minute, functions 0.019 cents a task: a host pays where
// more than a sixth of the time it is used, counting the minute in which it starts. So most of the load is held, and
// what comes above it only now and then is for functions.
func ExampleDecide() {
	terms := provision.Terms{
		Hosts:    []provision.Host{{Name: "c5.large", Tasks: 100, Step: quantity.USD * 3 / 1000}},
		Function: quantity.USD * 19 / 100_000, Delay: 1, Hold: 10,
	}
	forecast := provision.Forecast{Levels: []float64{0.1, 0.5, 0.9, 0.99}}
	for range terms.Horizon() {
		forecast.Steps = append(forecast.Steps, []float64{180, 240, 300, 900})
	}
	decision, err := provision.Decide(terms, nil, forecast)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%d hosts for %.0f tasks a minute; functions take %.0f in %d minutes\n", decision.Launch[0],
		decision.Capacity, decision.Spilled, terms.Horizon())
	// Output:
	// 3 hosts for 300 tasks a minute; functions take 603 in 11 minutes
}
