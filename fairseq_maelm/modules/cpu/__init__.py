"""Operations written for a CPU. They equal the plain formulas; a reader of the method can pass by."""
