"""From a canonical conversation to text, assistant turns and the tokens that end them."""
