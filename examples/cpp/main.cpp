// fastops in a C++ program without Python: its operators called, what they refuse, a model of torch's that trains with its
// kernels, and a package of AOTInductor. Prints a line for each; the exit status says whether all came out as they should.
#include <ATen/core/dispatch/Dispatcher.h>
#include <fastops/fastops.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <string>

namespace {

bool all_right = true;

void say(bool right, const std::string& text) {
  all_right &= right;
  std::printf("%s %s\n", right ? "ok    " : "WRONG ", text.c_str());
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight) {
  using Signature =
      at::Tensor(const at::Tensor&, const std::optional<at::Tensor>&, int64_t, std::optional<double>, double);
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("fastops::rms_norm", "").typed<Signature>();
  return op.call(x, weight, 1, std::nullopt, 0.0);
}

// The first line of what `call` throws.
template <class F>
std::string error_of(F call) {
  try {
    call();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.substr(0, text.find('\n'));
  }
  return "";
}

void operators() {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = torch::randn({37, 129}).to(dtype), weight = torch::randn({129}).to(dtype);
    const at::Tensor truth = at::rms_norm(x.to(at::kDouble), {129}, weight.to(at::kDouble));
    const double error = (rms_norm(x, weight).to(at::kDouble) - truth).abs().max().item<double>();
    say(error < (dtype == at::kFloat ? 1e-5 : 5e-2), std::string("fastops::rms_norm in ") + toString(dtype));
  }
  const at::Tensor x = torch::randn({3, 8}), weight = torch::ones({8});
  const std::string of_complex = error_of([&] { rms_norm(x.to(at::kComplexFloat), weight.to(at::kComplexFloat)); });
  say(of_complex.find("in Python alone") != std::string::npos, "a complex tensor: " + of_complex);
  const std::string of_gradient = error_of([&] { rms_norm(x, weight.clone().requires_grad_()); });
  say(of_gradient.find("requires a gradient") != std::string::npos, "a gradient: " + of_gradient);
  const torch::NoGradGuard no_grad;
  say(rms_norm(x, weight.clone().requires_grad_()).defined(), "the same under no_grad");
}

// The losses of some steps of a small model with a layer norm.
std::vector<double> trained() {
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(16, 32), torch::nn::LayerNorm(torch::nn::LayerNormOptions({32})),
                              torch::nn::ReLU(), torch::nn::Linear(32, 1));
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  const at::Tensor x = torch::randn({64, 16}), target = x.sum(1, true).sin();
  std::vector<double> losses;
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = torch::mse_loss(model->forward(x), target);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

void training() {
  const std::vector<double> before = trained();
  say(fastops_enable(nullptr) == 0, "fastops_enable(NULL)");
  const std::vector<double> during = trained();
  say(fastops_disable(nullptr) == 0, "fastops_disable(NULL)");
  say(trained() == before, "afterwards torch's own bits");
  say(fastops_enable("conv2d") != 0, "fastops_enable(\"conv2d\") is refused");
  double worst = 0;
  for (size_t k = 0; k < before.size(); ++k) worst = std::max(worst, std::abs(during[k] - before[k]));
  say(during.back() < 0.5 * during.front(), "a model with a LayerNorm trains: loss " + std::to_string(during.front()) +
                                                " to " + std::to_string(during.back()));
  say(worst < 1e-4 && during != before, "its losses are torch's within rounding");
}

// A package that Python made of a module whose forward is fastops.rms_norm.
void package(const char* file) {
  const torch::NoGradGuard no_grad;
  torch::inductor::AOTIModelPackageLoader loader(file);
  const at::Tensor x = torch::randn({4, 64});
  const at::Tensor y = loader.run({x}).at(0);
  say(at::allclose(y, at::rms_norm(x, {64}), 1e-4, 1e-5), "a package of AOTInductor");
}

}  // namespace

int main(int count, char** arguments) {
  std::printf("fastops %s\n", fastops_version());
  operators();
  training();
  if (count > 1) package(arguments[1]);
  return all_right ? 0 : 1;
}
