package termination_test

import (
	"fmt"

	"github.com/spillway-ml/spillway/workers/termination"
)

// The last line of a training run tells that it needs a larger device, and how much it asked for.
func ExampleClassify() {
	v := termination.Classify(termination.Evidence{
		Code: 1,
		Tail: "epoch 1\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity " +
			"of 79.15 GiB\n",
	})
	fmt.Println(v.Cause, v.Asked)
	// Output: out of device memory 2 GiB
}
