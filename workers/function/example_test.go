package function_test

import (
	"fmt"
	"net/http/httptest"
	"os"

	"github.com/spillway-ml/spillway/workers/function"
)

// The caller listens; AWS clients find the host through the environment variable AWS_ENDPOINT_URL_LAMBDA, and sign with
// its key.
func ExampleHost() {
	dir, err := os.MkdirTemp("", "functions-*")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	host, err := function.New(function.Options{Dir: dir, Secret: "AWS_SECRET_ACCESS_KEY of its callers"})
	if err != nil {
		fmt.Println(err)
		return
	}
	server := httptest.NewServer(host) // AWS_ENDPOINT_URL_LAMBDA=server.URL
	fmt.Println(len(host.Stats()), "functions")
	fmt.Println(host.Close())
	server.Close()
	// Output:
	// 0 functions
	// <nil>
}
