package spawn_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	"github.com/spillway-ml/spillway/workers/spawn"
)

// A child is started on the first CPU that this process may use.
func ExampleSpawner() {
	cpus, err := spawn.AllowedCPUs()
	if err != nil {
		fmt.Println(err)
		return
	}
	s, err := spawn.New(spawn.Options{CPUs: cpus[:1]})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	cmd := exec.CommandContext(context.Background(), "echo", "hello")
	cmd.Stdout = os.Stdout
	if err := s.Start(cmd); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(cmd.Wait())
	// Output:
	// hello
	// <nil>
}
