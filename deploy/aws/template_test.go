package aws_test

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// template is a template of CloudFormation, with its short forms (!Ref) written out ("Ref").
type template struct {
	AWSTemplateFormatVersion, Description string
	Parameters, Conditions, Outputs       map[string]any
	Resources                             map[string]resource
}

type resource struct {
	Type, Condition, DeletionPolicy, UpdateReplacePolicy string
	Properties                                           map[string]any
}

func read(t *testing.T) template {
	t.Helper()
	text, err := os.ReadFile("template.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil {
		t.Fatal(err)
	}
	writeOut(&root)
	var whole map[string]any
	if err := root.Decode(&whole); err != nil {
		t.Fatal(err)
	}
	asJSON, err := json.Marshal(whole)
	if err != nil {
		t.Fatal(err)
	}
	var tpl template
	if err := json.Unmarshal(asJSON, &tpl); err != nil {
		t.Fatal(err)
	}
	return tpl
}

// writeOut turns `!Sub x` into `Fn::Sub: x`, which means the same to CloudFormation.
func writeOut(n *yaml.Node) {
	for _, child := range n.Content {
		writeOut(child)
	}
	name, short := strings.CutPrefix(n.Tag, "!")
	if !short || strings.HasPrefix(name, "!") {
		return
	}
	if name != "Ref" && name != "Condition" {
		name = "Fn::" + name
	}
	value := *n
	value.Tag = ""
	key := &yaml.Node{Kind: yaml.ScalarNode, Value: name}
	*n = yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{key, &value}}
}

// walk calls visit with every mapping below value.
func walk(value any, visit func(map[string]any)) {
	switch v := value.(type) {
	case map[string]any:
		visit(v)
		for _, below := range v {
			walk(below, visit)
		}
	case []any:
		for _, below := range v {
			walk(below, visit)
		}
	}
}

var placeholder = regexp.MustCompile(`\$\{([A-Za-z0-9:.]+)\}`)

// functions are the intrinsic functions that the template may use.
var functions = []string{"Ref", "Condition", "Fn::Sub", "Fn::GetAtt", "Fn::If", "Fn::Equals", "Fn::Not", "Fn::And"}

func TestWhatTheTemplateNamesIsThere(t *testing.T) {
	t.Parallel()
	tpl := read(t)
	if tpl.AWSTemplateFormatVersion != "2010-09-09" || tpl.Description == "" || len(tpl.Description) > 1024 {
		t.Errorf("got version %q and a description of %d bytes", tpl.AWSTemplateFormatVersion, len(tpl.Description))
	}
	named := func(name string) bool {
		name, _, _ = strings.Cut(name, ".")
		_, parameter := tpl.Parameters[name]
		_, isResource := tpl.Resources[name]
		return parameter || isResource || slices.Contains([]string{
			"AWS::AccountId", "AWS::NoValue", "AWS::Partition", "AWS::Region",
		}, name)
	}
	seen := 0
	check := func(where string, value any) {
		walk(value, func(m map[string]any) {
			for key, of := range m {
				if strings.HasPrefix(key, "Fn::") && !slices.Contains(functions, key) {
					t.Errorf("%s: there is no function %s", where, key)
				}
				var names []string
				switch text, _ := of.(string); key {
				case "Ref":
					names = []string{text}
				case "Fn::GetAtt":
					names = []string{text}
				case "Fn::Sub":
					for _, found := range placeholder.FindAllStringSubmatch(text, -1) {
						names = append(names, found[1])
					}
				case "Fn::If":
					list, _ := of.([]any)
					if len(list) != 3 || tpl.Conditions[fmt.Sprint(list[0])] == nil {
						t.Errorf("%s: %v is no choice by a condition", where, of)
					}
				case "Condition":
					if _, isText := of.(string); isText && tpl.Conditions[text] == nil {
						t.Errorf("%s: there is no condition %q", where, text)
					}
				}
				for _, name := range names {
					seen++
					if !named(name) {
						t.Errorf("%s: there is no %q", where, name)
					}
				}
			}
		})
	}
	check("Conditions", tpl.Conditions)
	check("Outputs", tpl.Outputs)
	for name, r := range tpl.Resources {
		check(name, r.Properties)
		if r.Condition != "" && tpl.Conditions[r.Condition] == nil {
			t.Errorf("%s: there is no condition %q", name, r.Condition)
		}
	}
	if seen < 20 {
		t.Errorf("got %d names, want all", seen)
	}
}

func TestResourcesAreOfKnownTypesAndTheBucketOutlivesTheStack(t *testing.T) {
	t.Parallel()
	tpl := read(t)
	types := map[string]string{
		"FunctionRole": "AWS::IAM::Role", "EnginePolicy": "AWS::IAM::ManagedPolicy", "Bucket": "AWS::S3::Bucket",
		"BucketPolicy": "AWS::S3::BucketPolicy",
	}
	for name, r := range tpl.Resources {
		if r.Type != types[name] {
			t.Errorf("%s: got type %q, want %q", name, r.Type, types[name])
		}
	}
	if len(tpl.Resources) != len(types) {
		t.Errorf("got %d resources, want %d", len(tpl.Resources), len(types))
	}
	bucket := tpl.Resources["Bucket"]
	if bucket.DeletionPolicy != "Retain" || bucket.UpdateReplacePolicy != "Retain" {
		t.Errorf("got %+v, want a bucket that is kept", bucket)
	}
	for _, property := range []string{"BucketEncryption", "PublicAccessBlockConfiguration", "LifecycleConfiguration"} {
		if bucket.Properties[property] == nil {
			t.Errorf("the bucket has no %s", property)
		}
	}
	for _, setting := range bucket.Properties["PublicAccessBlockConfiguration"].(map[string]any) {
		if setting != true {
			t.Errorf("the bucket can be public: %v", bucket.Properties["PublicAccessBlockConfiguration"])
		}
	}
}
