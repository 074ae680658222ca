package check_test

import (
	"os"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// passwords are as secrets.sh makes them.
var passwords = []string{"POSTGRES_PASSWORD=x", "GRAFANA_PASSWORD=y", "LEDGER_URL=postgres://x@y/z"}

func TestTheComposeFileIsWhatComposeReads(t *testing.T) {
	t.Parallel()
	options, err := cli.NewProjectOptions([]string{"../compose/compose.yaml"},
		cli.WithEnv(append(passwords, "SPILLWAY_RELEASE=/release")))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	made, err := os.ReadFile("../compose/secrets.sh")
	if err != nil {
		t.Fatal(err)
	}
	for name, secret := range project.Secrets {
		if secret.Environment == "" || !strings.Contains(string(made), "\n"+secret.Environment+"=") {
			t.Errorf("secrets.sh makes no %q, of secret %s", secret.Environment, name)
		}
	}
	for name, service := range project.Services {
		_, tag, _ := strings.Cut(service.Image, ":")
		if service.Build == nil && (tag == "" || tag == "latest") {
			t.Errorf("%s: the image %q has no version", name, service.Image)
		}
		for _, volume := range service.Volumes {
			if volume.Type != types.VolumeTypeBind {
				continue
			}
			if _, err := os.Stat(volume.Source); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, port := range service.Ports {
			if port.HostIP != "127.0.0.1" && port.Target != 7475 {
				t.Errorf("%s: port %d is open to everybody", name, port.Target)
			}
		}
	}
}

func TestTheComposeFileNeedsItsSecrets(t *testing.T) {
	t.Parallel()
	options, err := cli.NewProjectOptions([]string{"../compose/compose.yaml"},
		cli.WithEnv([]string{"SPILLWAY_RELEASE=/release"}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := options.LoadProject(t.Context()); err == nil || !strings.Contains(err.Error(), "run ./secrets.sh first") {
		t.Errorf("without passwords: got %v", err)
	}
}
