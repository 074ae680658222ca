package enforce_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/enforce"
)

// A child runs with at most half a core and 64 MiB, where the host offers to hold that.
func ExampleGroup() {
	state, err := os.MkdirTemp("", "enforce")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(state) }()
	e, err := enforce.Open(enforce.Options{StateDir: state})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = e.Close() }()
	g, err := e.Group("slot-0")
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := g.Resize(quantity.Size{CPU: 500, Memory: 64 * quantity.MiB}); err != nil {
		fmt.Println(err)
		return
	}
	cmd := exec.CommandContext(context.Background(), "/proc/self/exe", "-test.run=^$")
	if err := g.Start(cmd); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(cmd.Wait())
	fmt.Println(g.Remove(context.Background()))
	// Output:
	// <nil>
	// <nil>
}
