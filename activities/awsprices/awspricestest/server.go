// Package awspricestest answers as the Price List API and EC2 do, over HTTP, from products in the documented form:
// https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/reading-an-offer.html. The file of products was made by
// hand from that form, not recorded from an account.
package awspricestest

import (
	_ "embed" // the products
	"encoding/json"
	"encoding/xml"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
)

//go:embed products.json
var embedded []byte

// Product is one entry of a price list.
type Product = map[string]any

// Spot is one entry of the history of spot prices.
type Spot struct {
	Name, Zone, Price string
	At                time.Time
}

// Server answers. Set its fields before the first request.
type Server struct {
	URL string
	// Products is what the Price List API knows.
	Products []Product
	// Spot is the history of spot prices, whatever time is asked for.
	Spot []Spot
	// Refuse makes the API refuse all with this exception and message.
	Refuse, Message string

	mu    sync.Mutex
	calls []string
}

// New starts a server that ends with the test.
func New(t *testing.T) *Server {
	t.Helper()
	s := &Server{}
	if err := json.Unmarshal(embedded, &s.Products); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(server.Close)
	s.URL = server.URL
	return s
}

// Config is a configuration of the SDK for the server.
func (s *Server) Config() aws.Config {
	return aws.Config{
		Region: "us-east-1", BaseEndpoint: &s.URL,
		Retryer:     func() aws.Retryer { return aws.NopRetryer{} },
		Credentials: credentials.NewStaticCredentialsProvider("key", "secret", ""),
	}
}

// Calls are the operations that were called, each once, sorted, as IAM names them.
func (s *Server) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.calls)
	return slices.Compact(slices.Clone(s.calls))
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	_, operation, isPriceList := strings.Cut(r.Header.Get("X-Amz-Target"), "AWSPriceListService.")
	if !isPriceList {
		operation = r.FormValue("Action")
	}
	s.mu.Lock()
	s.calls = append(s.calls, map[bool]string{true: "pricing:", false: "ec2:"}[isPriceList]+operation)
	s.mu.Unlock()
	switch {
	case s.Refuse != "":
		w.Header().Set("Content-Type", "application/x-amz-json-1.1")
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(map[string]string{"__type": s.Refuse, "message": s.Message})
	case operation == "GetProducts":
		s.getProducts(w, r)
	case operation == "DescribeSpotPriceHistory":
		s.spotHistory(w, r)
	default:
		http.Error(w, "no operation "+operation, http.StatusNotFound)
	}
}

// page is how many products are on one page, so that there are several.
const page = 2

func (s *Server) getProducts(w http.ResponseWriter, r *http.Request) {
	var in struct {
		ServiceCode, NextToken string
		Filters                []struct{ Field, Type, Value string }
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var found []string
	for _, product := range s.Products {
		attributes, _ := product["product"].(map[string]any)["attributes"].(map[string]any)
		matches := product["serviceCode"] == in.ServiceCode
		for _, filter := range in.Filters {
			value, has := attributes[filter.Field]
			matches = matches && filter.Type == "TERM_MATCH" && has && value == filter.Value
		}
		if matches {
			text, err := json.Marshal(product)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			found = append(found, string(text))
		}
	}
	first := 0
	if in.NextToken != "" {
		first, _ = strconv.Atoi(in.NextToken)
	}
	out := map[string]any{"FormatVersion": "aws_v1", "PriceList": found[first:min(first+page, len(found))]}
	if first+page < len(found) {
		out["NextToken"] = strconv.Itoa(first + page)
	}
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	_ = json.NewEncoder(w).Encode(out) // who asks has gone where it fails
}

func (s *Server) spotHistory(w http.ResponseWriter, r *http.Request) {
	type item struct {
		InstanceType       string `xml:"instanceType"`
		ProductDescription string `xml:"productDescription"`
		SpotPrice          string `xml:"spotPrice"`
		Timestamp          string `xml:"timestamp"`
		AvailabilityZone   string `xml:"availabilityZone"`
	}
	out := struct {
		XMLName   xml.Name `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ DescribeSpotPriceHistoryResponse"`
		RequestID string   `xml:"requestId"`
		Items     []item   `xml:"spotPriceHistorySet>item"`
		NextToken string   `xml:"nextToken"`
	}{RequestID: "a-request"}
	var wanted []string
	for i := 1; r.FormValue(fmt.Sprintf("InstanceType.%d", i)) != ""; i++ {
		wanted = append(wanted, r.FormValue(fmt.Sprintf("InstanceType.%d", i)))
	}
	for _, one := range s.Spot {
		if slices.Contains(wanted, one.Name) && r.FormValue("ProductDescription.1") == "Linux/UNIX" {
			out.Items = append(out.Items, item{
				one.Name, "Linux/UNIX", one.Price, one.At.UTC().Format("2006-01-02T15:04:05.000Z"), one.Zone,
			})
		}
	}
	first := 0
	if token := r.FormValue("NextToken"); token != "" {
		first, _ = strconv.Atoi(token)
	}
	if first+page < len(out.Items) {
		out.NextToken = strconv.Itoa(first + page)
	}
	out.Items = out.Items[first:min(first+page, len(out.Items))]
	w.Header().Set("Content-Type", "text/xml")
	_ = xml.NewEncoder(w).Encode(out) // who asks has gone where it fails
}

// Find returns the product of a group of functions, or of an instance type.
func (s *Server) Find(t *testing.T, name string) Product {
	t.Helper()
	for _, product := range s.Products {
		attributes, _ := product["product"].(map[string]any)["attributes"].(map[string]any)
		if attributes["regionCode"] != "" && (attributes["group"] == name || attributes["instanceType"] == name) {
			return product
		}
	}
	t.Fatalf("there is no product %s", name)
	return nil
}

// Dimensions are the prices of a product, to be changed.
func Dimensions(product Product) (all []map[string]any) {
	terms, _ := product["terms"].(map[string]any)["OnDemand"].(map[string]any)
	for _, term := range terms {
		dimensions, _ := term.(map[string]any)["priceDimensions"].(map[string]any)
		for _, one := range dimensions {
			all = append(all, one.(map[string]any))
		}
	}
	return all
}
