package predictor_test

import (
	"fmt"
	"strings"

	"github.com/spillway-ml/spillway/predictor"
)

func ExampleDecide() {
	var state predictor.State
	// Ten attempts of earlier runs took 0.1 s and one core each; now a run puts 240 tasks on the queue of a host of one
	// core.
	for task := range 10 {
		state = predictor.Fold(state, record("earlier", "score", task, -60, 0.1))
	}
	state = predictor.Fold(state, started("today", 0, predictor.Goal{}))
	state = predictor.Fold(state, hint("today", "score", 240, 0))

	snapshot := laptop(1, 1)
	snapshot.Functions.Concurrency = 1
	plan, _ := predictor.Decide(state, snapshot)
	for _, grant := range plan.Grants {
		fmt.Printf("%s at %s: %d slot of %s\n", grant.Stage.Name, grant.Venue, grant.Slots, grant.Size)
	}
	for _, decision := range plan.Decisions {
		fmt.Println(strings.ReplaceAll(decision.Reason, "; ", ";\n  "))
	}
	// Output:
	// score at function: 1 slot of 1 core, 1.7 GiB
	// score at pool: 1 slot of 1 core, 104 MiB
	// first size: 10 attempts
	// 240 tasks wait and none runs, 0.1 s each: done in 24 s at the pool;
	//   the hosts have no room for more slots
	// 240 tasks wait 24 s at 1 pool slot;
	//   1 function slot finishes 12 s sooner for $0.0003724, less than the $0.003319 that 12 s are worth
}
