// Package pricing knows what capacity costs: a dated catalogue of prices, and exact arithmetic on shares of hosts. All
// amounts are exact to the picodollar.
package pricing
