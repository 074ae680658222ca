package release_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/nats-io/nats-server/v2/server"
	"go.yaml.in/yaml/v3"
)

func TestTheSettingsOfTheComposeFileAreThoseOfTheBinary(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../config.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema jsonschema.Schema
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	settings, err := os.ReadFile("../compose/server.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var said map[string]any
	if err := yaml.Unmarshal(settings, &said); err != nil {
		t.Fatal(err)
	}
	if err := resolved.Validate(said); err != nil {
		t.Errorf("server.yaml: %v", err)
	}
}

func TestTheConfigurationOfNATSIsWhatItReads(t *testing.T) {
	t.Parallel()
	options, err := server.ProcessConfigFile("../compose/nats.conf")
	if err != nil {
		t.Fatal(err)
	}
	if !options.JetStream || options.StoreDir != "/data" || options.LeafNode.Port != 7422 || options.Port != 4222 {
		t.Errorf("it has JetStream %v in %q and listens at %d and %d", options.JetStream, options.StoreDir, options.Port,
			options.LeafNode.Port)
	}
}
