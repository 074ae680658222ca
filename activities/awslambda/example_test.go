package awslambda_test

import (
	"fmt"

	"github.com/spillway-ml/spillway/activities/awslambda"
)

func ExampleClass() {
	fmt.Println(awslambda.Class(700 << 20))
	fmt.Println(awslambda.Class(64 << 30))
	// Output:
	// 1024 true
	// 0 false
}
