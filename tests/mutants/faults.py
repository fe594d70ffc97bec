"""Small faults as they happen to careful people, each with one quick test that must notice it.

`file` is below `template/`, or below the package of `template/project/src`. `old` stands in it
exactly once. `test` is a node id below `tests/`; it passes without the fault, as every normal run
shows.
"""

from __future__ import annotations

from typing import NamedTuple

DISTRIBUTED = "test_distributed.py::"


class Fault(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    test: str


LOOP = "interfaces/test_loop.py::"
PRECISION = "interfaces/test_precision.py::"
ORDER = "interfaces/test_order.py::"
LOADER = "interfaces/test_loader.py::"
CHECKPOINT = "interfaces/test_checkpoint.py::"
EVALUATION = "interfaces/test_evaluation.py::"
STORE = "interfaces/test_store.py::"
SESSION = "interfaces/test_session.py::"
WORKLOAD = "interfaces/test_workload.py::"

CHECK = (
    Fault(
        "check passes a loss that counts filler",
        "parts/extras/contract.py",
        "require(close(alone, padded), why, where)",
        "pass",
        "test_check.py::test_what_breaks_the_contract_is_named[a forgotten mask]",
    ),
    Fault(
        "check looks one row too late for a leak",
        "parts/extras/contract.py",
        "np.arange(num_rows) >= places[:, None]",
        "np.arange(num_rows) > places[:, None]",
        "test_check.py::test_what_breaks_the_contract_is_named[a leak by one row]",
    ),
)

PICTURES = (
    Fault(
        "examples leave the model as it evaluates",
        "hooks/examples.py",
        "model.train(was_training)",
        "pass",
        "test_examples.py::test_pictures_cost_no_bit_of_the_training[seldom]",
    ),
    Fault(
        "a loss that begins above the naive one is an alert",
        "hooks/alerts.py",
        "elif must_beat_baseline and not",
        "elif not",
        "test_examples.py::test_what_an_alert_of_divergence_is",
    ),
)

WEIGHTS = (
    Fault(
        "Muon takes embeddings",
        "parts/extras/muon.py",
        "if not is_embedding and weight.dim()",
        "if weight.dim()",
        "test_muon.py::test_each_weight_has_the_step_of_its_own_kind",
    ),
    Fault(
        "a resumed run starts from other weights again",
        "engine/weights.py",
        "    if restored:\n",
        "    if False:\n",
        "test_weights.py::test_a_resumed_run_continues_from_its_own_weights[pytorch]",
    ),
    Fault(
        "frozen weights are trained",
        "engine/weights.py",
        "weight.requires_grad_(False)",
        "weight.requires_grad_(True)",
        "test_weights.py::test_frozen_weights_stay_and_a_phase_trains_them[pytorch]",
    ),
    Fault(
        "a rank takes all rows of sharded weights",
        "engine/weights.py",
        "rows.setdefault(key, []).append(tensor)",
        "rows[key] = [tensor]",
        "test_weights.py::test_two_ranks_start_from_whole_and_from_sharded_weights[fsdp]",
    ),
)

HOOKS = (
    Fault(
        "a hook's state is not restored",
        "engine/progress.py",
        "hook.load_state_dict(state[name])",
        "pass",
        "test_hooks.py::test_a_hooks_state_survives_stops_and_changes_no_loss[pytorch]",
    ),
    Fault(
        "a hook's state ends with its phase",
        "engine/run.py",
        'self.checkpoint.load_model("last", also=("hooks",))',
        'self.checkpoint.load_model("last")',
        "test_hooks.py::test_a_state_goes_on_from_phase_to_phase",
    ),
    Fault(
        "a resumed run averages anew",
        "parts/extras/ema.py",
        "fill(average, saved[name])",
        "pass",
        "test_ema.py::test_it_changes_no_step_and_resumes_bit_for_bit[pytorch]",
    ),
    Fault(
        "a resumed row forgets the steps before the stop",
        "engine/monitor.py",
        "self._measured.setdefault(name, []).extend(pairs)",
        "pass",
        "interfaces/test_rows.py::test_a_row_is_the_mean_over_its_steps_wherever_a_run_stops[pytorch]",
    ),
    Fault(
        "one learning rate for all groups",
        "engine/optimization.py",
        'group["lr"] = peak * fraction',
        'group["lr"] = self.peak * fraction',
        "interfaces/test_rows.py::test_each_group_keeps_its_own_rate",
    ),
)

STEP = (
    Fault(
        "gradients are not cleared",
        "engine/precision.py",
        "raw.zero_grad(set_to_none=True)\n        return norm",
        "return norm",
        LOOP + "test_groups_do_not_leak_into_each_other[accelerate]",
    ),
    Fault(
        "loss / accumulate",
        "parts/framework/pytorch.py",
        "output.loss.backward(gradient=precision.scale(output.total_weight))",
        "output.loss.backward(gradient=precision.scale(output.total_weight * 0 + 1))",
        LOOP + "test_a_group_of_ragged_batches_equals_one_big_batch",
    ),
    Fault(
        "unclipped",
        "engine/precision.py",
        "torch.maximum(divisor, norm / clip) if clip else divisor",
        "divisor",
        LOOP + "test_clipping_is_that_of_torch_on_the_mean_gradient[pytorch-torch.float32-0.5]",
    ),
    Fault(
        "averaged gradients are not made a sum again",
        "parts/framework/pytorch.py",
        "/ (distributed.world * step_fraction)",
        "/ step_fraction",
        LOOP + "test_two_ranks_that_average_gradients_equal_one[0.0-pytorch]",
    ),
    Fault(
        "an epoch's rest moves the weights as a whole step does",
        "parts/framework/pytorch.py",
        "/ (distributed.world * step_fraction)",
        "/ distributed.world",
        LOOP + "test_a_step_of_few_samples_moves_weights_by_its_share[0.0-pytorch]",
    ),
    Fault(
        "a batch that is filled up inside of an epoch is a whole step",
        "parts/workload/seq2seq/buckets.py",
        "short_last = False",
        "short_last = True",
        ORDER + "test_a_step_has_a_fraction_of_the_samples_of_a_complete_one",
    ),
    Fault(
        "a state is masked by multiplication",
        "parts/workload/timeseries/recurrent.py",
        "torch.where(rows, torch.zeros_like(values), values)",
        "values * ~rows",
        LOOP + "test_a_state_continues_in_its_lane_and_is_zero_where_it_starts_afresh",
    ),
    Fault(
        "a state keeps its graph",
        "parts/workload/timeseries/recurrent.py",
        "tree_map(Tensor.detach, state)",
        "state",
        LOOP + "test_a_carried_state_is_cut_off_from_the_graph[pytorch]",
    ),
)

FORMATS = (
    Fault(
        "gradients are not unscaled",
        "engine/precision.py",
        "self.scaler.unscale_(raw)",
        "pass",
        PRECISION + "test_the_optimizer_sees_the_unscaled_mean_gradient",
    ),
    Fault(
        "an overflow reaches the weights",
        "engine/precision.py",
        "raw.found_inf = overflow",
        "raw.found_inf = None",
        PRECISION + "test_an_overflow_skips_its_step_and_halves_the_scale",
    ),
    Fault(
        "an overflow passes an unfused optimizer",
        "engine/precision.py",
        "raw.zero_grad(set_to_none=True)  # no gradients, no update; a framework counts the step",
        "pass",
        SESSION + "test_an_overflow_under_fp16_skips_one_update_and_no_step[false-accelerate]",
    ),
)

FRAMEWORKS = (
    Fault(
        "Lightning counts a resumed epoch from its beginning",
        "parts/framework/lightning.py",
        "self.first = self.number = self.run.progress.batch",
        "self.first = self.number = 0",
        "test_tier_b.py::test_a_run_goes_on_under_another_framework",
    ),
    Fault(
        "Lightning keeps the signals",
        "parts/framework/lightning.py",
        "self.run.signals.listen()  # Lightning has just put its own signal handlers in place",
        "pass",
        "test_resume.py::test_signal_saves_reports_and_resumes",
    ),
    Fault(
        "Accelerate casts a second time",
        "parts/framework/accelerate.py",
        '"mixed_precision": "no",',
        "",
        "test_tier_b.py::test_the_number_format_of_accelerate_launch_changes_nothing",
    ),
    Fault(
        "Lightning weighs micro-batches alike",
        "parts/framework/lightning.py",
        "self.manual_backward(output.loss, gradient=precision.scale(output.total_weight))",
        "self.manual_backward(output.loss, gradient=precision.scale(output.total_weight * 0 + 1))",
        LOOP + "test_groups_do_not_leak_into_each_other[lightning]",
    ),
    Fault(
        "Accelerate divides by one rank's targets",
        "parts/framework/accelerate.py",
        "distributed.sum_over_ranks(total(losses)).clamp(min=1)",
        "total(losses).clamp(min=1) * distributed.world",
        LOOP + "test_two_ranks_that_average_gradients_equal_one[0.0-accelerate]",
    ),
)

TRACKERS = (
    Fault(
        "a resumed run is tracked as a new one",
        "parts/tracker/mlflow.py",
        'read_json(self.folder / IDENTITY).get("id", "")',
        '""',
        "test_trackers.py::test_a_run_its_resume_and_its_evaluation_arrive_and_no_secret_does[mlflow]",
    ),
    Fault(
        "rows are drawn twice after a kill",
        "parts/tracker/tensorboard.py",
        "step + 1 if step else None",
        "None",
        "test_trackers.py::test_rows_that_come_again_after_a_kill_are_drawn_once",
    ),
    Fault(
        "an error line shows a password",
        "parts/tracker/_tracking.py",
        "if SECRET.search(name) and len(value) > 3:",
        "if not name:",
        "test_trackers.py::test_a_tracker_that_fails_midway_costs_one_line_and_no_step[tensorboard]",
    ),
)

RATES = (
    Fault(
        "the warm-up begins at nothing",
        "engine/optimization.py",
        "return (step + 1) / warmup",
        "return step / warmup",
        "interfaces/test_schedule.py::test_warmup_then_decay_are_those_of_torch",
    ),
    Fault(
        "the schedule sets groups that are gone",
        "engine/optimization.py",
        "zip(self.optimizer.param_groups, self.peaks, strict=True):",
        "zip(self.__dict__.setdefault('old', self.optimizer.param_groups), self.peaks, strict=True):",
        "interfaces/test_rows.py::test_each_group_keeps_its_own_rate",
    ),
    Fault(
        "biases decay",
        "engine/optimization.py",
        '"weight_decay": 0.0}',
        '"weight_decay": decay}',
        "interfaces/test_optimization.py::test_each_weight_is_optimized_once_and_only_matrices_decay",
    ),
)

ORDERS = (
    Fault(
        "every epoch in one order",
        "engine/order.py",
        "return permutation(self.count, self.seed, epoch)",
        "return permutation(self.count, self.seed)",
        ORDER + "test_seed_and_epoch_change_a_shuffled_order",
    ),
    Fault(
        "filled up with a real sample",
        "engine/order.py",
        "positions[positions >= self.count] = -1",
        "positions[positions >= self.count] = 0",
        ORDER + "test_an_epoch_has_each_sample_once",
    ),
    Fault(
        "all ranks read the same",
        "engine/order.py",
        "columns = self.rank * self.batch_size + np.arange(self.batch_size)",
        "columns = np.arange(self.batch_size)",
        ORDER + "test_any_number_of_ranks_makes_the_same_batches",
    ),
    Fault(
        "a lane begins with another one's state",
        "parts/workload/timeseries/lanes.py",
        "(step == 0) | ~present",
        "(rows == 0) | ~present",
        ORDER + "test_a_lane_continues_in_time_and_says_where_it_begins",
    ),
    Fault(
        "an epoch keeps the shuffle of the one before",
        "engine/order.py",
        "if kept_epoch != epoch:",
        "if kept_epoch < 0:",
        ORDER + "test_what_was_asked_before_changes_nothing",
    ),
    Fault(
        "the order changes under the same rule",
        "engine/order.py",
        "np.random.RandomState(seed)",
        "np.random.default_rng(seed)",
        ORDER + "test_the_rule_is_that_of_its_number[full]",
    ),
    Fault(
        "a resumed epoch begins at its beginning",
        "parts/loader/dataloader.py",
        "self.order.batches(self._epoch, self._start)",
        "self.order.batches(self._epoch)",
        LOADER + "test_any_position_can_be_resumed[time-dataloader]",
    ),
)

EVALUATIONS = (
    Fault(
        "evaluated in training mode",
        "engine/evaluation.py",
        "model.eval()",
        "model.train()",
        EVALUATION + "test_no_trace_is_left",
    ),
    Fault(
        "a mean of batch means",
        "engine/evaluation.py",
        '{"loss": (output.loss * output.total_weight, output.total_weight), **output.metrics}',
        '{"loss": (output.loss, torch.ones_like(output.loss)), **output.metrics}',
        EVALUATION + "test_sums_equal_a_direct_computation_in_float64",
    ),
)

RUNS = (
    Fault(
        "a resumed run takes another seed without a word",
        "commands/train.py",
        'key == "reproducibility.seed" or',
        "",
        "test_answers.py::test_a_resumed_run_refuses_what_would_make_it_another[--reproducibility.seed]",
    ),
    Fault(
        "resumed without random state",
        "engine/progress.py",
        'set_random_state(ranks[self.distributed.rank]["random"])',
        "pass",
        "test_tier_b.py::test_trains_stops_resumes_and_evaluates[default]",
    ),
    Fault(
        "resumed with the schedule's beginning",
        "engine/run.py",
        "self.schedule.set(self.step_of_phase)",
        "self.schedule.set(0)",
        "test_tier_b.py::test_trains_stops_resumes_and_evaluates[default]",
    ),
    Fault(
        "the dry run moves running statistics",
        "engine/memory.py",
        "buffer.copy_(buffers[name])",
        "pass",
        SESSION + "test_the_dry_run_leaves_no_trace[tabular]",
    ),
    Fault(
        "checkpoints are believed unread",
        "engine/checkpoint.py",
        "if sha256(path / name) != expected:",
        "if not (path / name).exists():",
        CHECKPOINT + "test_the_newest_valid_one_wins_and_others_are_named",
    ),
    Fault(
        "pruned before the new one verifies",
        "engine/checkpoint.py",
        "        _verify(target)\n",
        "        pass\n",
        CHECKPOINT + "test_pruning_waits_until_the_new_one_verifies",
    ),
    Fault(
        "the best checkpoint is pruned",
        "engine/checkpoint.py",
        "if path.name != self.best():",
        "if path.name:",
        CHECKPOINT + "test_the_best_one_stays_until_another_is_better",
    ),
    Fault(
        "a store deletes what is not its own",
        "engine/store.py",
        "OURS.fullmatch(old.name)",
        'old.name.startswith("store-")',
        STORE + "test_a_new_store_removes_the_old_one_and_nothing_else",
    ),
    Fault(
        "the manifest comes before its files",
        "engine/store.py",
        "        for stale in self.folder.glob",
        "        write_json(self.folder / MANIFEST, {})\n        for stale in self.folder.glob",
        STORE + "test_a_full_disk_leaves_the_store_that_was_there",
    ),
    Fault(
        "damage that the guard finds ends nothing",
        "parts/extras/guard.py",
        "run.fail(self._error)",
        "pass",
        STORE + "test_the_guard_ends_a_run_on_damaged_data",
    ),
    Fault(
        "waiting for the GPU counts as waiting for data",
        "engine/monitor.py",
        "self._waited += end_time - start_time",
        "self._waited += time.perf_counter() - start_time",
        LOADER + "test_waiting_for_the_gpu_is_no_wait_for_data",
    ),
    Fault(
        "a block is filled again before its copy to the GPU",
        "parts/loader/chunk/reader.py",
        "copied.synchronize()  # the copy",
        "copied  # the copy",
        "test_gpu_paths.py::test_late_copies_give_the_same_batches_by_threads_on_their_own_card[0.0004]",
    ),
    Fault(
        "a chunk is overwritten while the GPU reads it",
        "parts/loader/chunk/reader.py",
        "own.stream.wait_event(free)",
        "pass",
        "test_gpu_paths.py::test_late_copies_give_the_same_batches_by_threads_on_their_own_card[0.0004]",
    ),
    Fault(
        "resident rows of an earlier epoch are taken for this one's",
        "parts/loader/memmap.py",
        "if extents == self._extents:",
        "if self._resident:",
        LOADER + "test_resident_rows_grow_with_what_later_epochs_need[memmap]",
    ),
    Fault(
        "a full disk kills at a row",
        "engine/monitor.py",
        "except OSError as error:\n            what",
        "except KeyError as error:\n            what",
        "test_resume.py::test_a_full_disk_ends_no_training_at_a_record",
    ),
)

PROCESSES = (
    Fault(
        "metrics of rank 0 alone",
        "engine/evaluation.py",
        "sums = distributed.sum_over_ranks(torch.stack(list(totals.values()))).tolist()",
        "sums = torch.stack(list(totals.values())).tolist()",
        DISTRIBUTED + "test_two_ranks_train_stop_resume_and_evaluate_as_one[tabular-ddp]",
    ),
    Fault(
        "a divisor of one rank's targets",
        "parts/framework/pytorch.py",
        "distributed.sum_over_ranks(total(losses)).clamp(min=1)",
        "(distributed.sum_over_ranks(total(losses)) * 0 + total(losses) * distributed.world).clamp(min=1)",
        "interfaces/test_ranks.py::test_two_ranks_take_the_steps_of_one[ddp-0.0]",
    ),
    Fault(
        "resumed with the random state of rank 0",
        "engine/progress.py",
        'set_random_state(ranks[self.distributed.rank]["random"])',
        'set_random_state(ranks[0]["random"])',
        DISTRIBUTED + "test_a_signal_to_one_rank_stops_all_after_the_same_step[pytorch]",
    ),
    Fault(
        "lanes go on with another rank's state",
        "parts/workload/timeseries/recurrent.py",
        "torch.cat(values)[rows]",
        "torch.cat(values)[: rows.stop - rows.start]",
        "interfaces/test_progress.py::test_carried_states_find_their_lanes[2-1]",
    ),
    Fault(
        "a signal stops one rank alone",
        "parts/distributed/_group.py",
        "return int(previous_largest)",
        "return number",
        DISTRIBUTED + "test_a_signal_to_one_rank_stops_all_after_the_same_step[pytorch]",
    ),
    Fault(
        "rows of another rank's shard",
        "parts/distributed/fsdp.py",
        "[low - start : high - start]",
        "[: high - low]",
        DISTRIBUTED + "test_shards_of_two_ranks_are_read_by_any_number[3]",
    ),
    Fault(
        "a bad loss of another rank is not seen",
        "engine/monitor.py",
        "num_bad = self.distributed.sum_over_ranks((~torch.stack(losses).isfinite()).sum())",
        "num_bad = (~torch.stack(losses).isfinite()).sum()",
        DISTRIBUTED + "test_a_loss_of_one_rank_that_is_not_finite_is_told_once",
    ),
)

WORKLOADS = (
    Fault(
        "filler counts in the loss",
        "parts/workload/tabular/model.py",
        "target = torch.where(present, target, prediction.detach())",
        "pass",
        WORKLOAD + "test_batches_and_padding_change_no_sum[tabular]",
    ),
    Fault(
        "split borders are swapped",
        "prepare/splits.py",
        'SPLITS = ("train", "validation", "test")',
        'SPLITS = ("test", "validation", "train")',
        "test_tabular.py::test_every_row_is_in_one_split_and_whole",
    ),
    Fault(
        "the scaler has seen validation and test",
        "parts/workload/tabular/prepare.py",
        'train[order[: splits["train"][1]]] = True',
        "train[:] = True",
        "test_tabular.py::test_facts_come_from_the_training_rows_alone",
    ),
    Fault(
        "a window sees an open bar",
        "parts/workload/timeseries/dataset.py",
        'closed[rows - 1], present, frame["history"], 0)',
        'closed[rows], present, frame["history"], 0)',
        "test_timeseries.py::test_a_window_sees_no_open_bar",
    ),
    Fault(
        "the history holds the first target",
        "parts/workload/timeseries/dataset.py",
        "batch[name] = both[:, :history]",
        "batch[name] = both[:, 1 : history + 1]",
        "test_timeseries.py::test_a_window_belongs_to_the_split_that_holds_all_its_targets",
    ),
    Fault(
        "the series' scaler has seen validation and test",
        "parts/prepare/frames.py",
        "bars.values[:num_closed]",
        "bars.values",
        "test_timeseries.py::test_noise_behind_the_training_border_changes_neither_scaler_nor_losses",
    ),
    Fault(
        "the windows' scaler has seen validation and test",
        "parts/workload/windows/dataset.py",
        "values[: border - first].reshape",
        "values.reshape",
        "test_windows.py::test_hdf5_is_read_as_it_is",
    ),
    Fault(
        "unshifted tokens",
        "parts/workload/llm/dataset.py",
        "targets = values[:, 1:].masked_fill",
        "targets = values[:, :-1].masked_fill",
        "test_llm.py::test_each_token_but_the_first_is_the_target_of_the_one_before_it_once[7]",
    ),
    Fault(
        "a token sees the later ones",
        "parts/workload/llm/model.py",
        "is_causal=time > 1",
        "is_causal=False",
        "test_llm.py::test_no_token_sees_a_later_one[rotary]",
    ),
    Fault(
        "a cached token stands at the first position",
        "parts/workload/llm/model.py",
        "start = caches[0].length if caches else 0",
        "start = 0",
        "test_llm.py::test_generating_with_a_cache_equals_without[5-flags0]",
    ),
)

SEQ2SEQ = (
    Fault(
        "attention sees the padding",
        "parts/workload/seq2seq/model.py",
        "bias = _positions(stack, length).masked_fill(absent, -math.inf)",
        "bias = _positions(stack, length).expand(len(source), -1, -1, -1)",
        "test_seq2seq.py::test_twenty_places_more_of_padding_change_nothing",
    ),
    Fault(
        "the decoder sees its target",
        "parts/workload/seq2seq/dataset.py",
        "functional.pad(target[:, :-1], (1, 0), value=self.start)",
        "target",
        "test_seq2seq.py::test_batches_hold_the_pairs_one_place_apart",
    ),
    Fault(
        "one denominator for all metrics",
        "parts/workload/seq2seq/model.py",
        '"exact_match": (exact.sum(), sample.sum())',
        '"exact_match": (exact.sum(), weight)',
        "test_seq2seq.py::test_each_metric_has_its_own_denominator",
    ),
)

GRAPH = (
    Fault(
        "training targets lie behind the border",
        "parts/workload/graph/dataset.py",
        "[0, train_end - ahead]",
        "[0, train_end]",
        "test_graph.py::test_noise_after_the_border_changes_nothing_before_it",
    ),
    Fault(
        "a graph knows the next refresh date",
        "parts/workload/graph/dataset.py",
        'np.searchsorted(opens, days, "right") - 1',
        'np.searchsorted(opens, days, "right").clip(max=len(opens) - 1)',
        "test_graph.py::test_graphs_are_those_of_the_past_correlations",
    ),
    Fault(
        "scaled by all days",
        "parts/workload/graph/dataset.py",
        'seats = arrays["seats"][train]',
        'seats = arrays["seats"]',
        "test_graph.py::test_noise_after_the_border_changes_nothing_before_it",
    ),
    Fault(
        "edges lead into the next day of a batch",
        "parts/workload/graph/model.py",
        "(nodes - nodes % seats)",
        "(0 * nodes)",
        "test_graph_attention.py::test_days_of_a_batch_do_not_see_each_other",
    ),
)

MACHINE = (
    Fault(
        "waiting for data is no cause",
        "parts/extras/watch.py",
        "if waits > WAITS:",
        "if waits > 1:",
        "test_watch.py::test_a_badly_used_device_gets_cause_and_remedy",
    ),
    Fault(
        "an LSTM's backward costs nothing",
        "parts/extras/costs.py",
        "return forward if packet is aten.mkldnn_rnn_layer else 2 * forward",
        "return forward if packet is aten.mkldnn_rnn_layer else 0.0",
        "test_estimate.py::test_an_lstm_counts_all_its_steps",
    ),
    Fault(
        "accumulation is free",
        "parts/extras/costs.py",
        '"compute": accumulation * compute',
        '"compute": compute',
        "test_estimate.py::test_each_operation_takes_the_longer_of_its_flops_and_bytes",
    ),
    Fault(
        "rounded down instead of to the nearest",
        "parts/extras/export.py",
        "whole = (weight / scale).round()",
        "whole = (weight / scale).trunc()",
        "test_export.py::test_an_lstm_says_what_int8_is_not",
    ),
    Fault(
        "auto compiles where Triton does not run",
        "engine/optimization.py",
        "if capability < COMPILE_CAPABILITY:",
        "if capability < (7, 0):",
        "interfaces/test_optimization.py::test_whether_blocks_compile[auto-capability1-False]",
    ),
)

MEASURING = (
    Fault(
        "no row is ever flagged",
        "parts/extras/measurements.py",
        "if distance <= LIMIT * between:  # and so not for nan",
        "if not distance > 100 * LIMIT * between:",
        "test_benchmark.py::test_a_loss_strays_by_three_spreads_of_fp32s[losses2-True]",
    ),
    Fault(
        "the warm-up is timed",
        "parts/extras/trials.py",
        'timed = [row for row in rows if row["step"] > warmup]',
        "timed = rows",
        "test_benchmark.py::test_figures_of_a_run",
    ),
    Fault(
        "the plain loader shifts every epoch alike",
        "parts/extras/plain_loader.py",
        "sample, epoch = key\n",
        "sample, epoch = key[0], 0\n",
        LOADER + "test_the_loader_that_benchmarks_compare_with_gives_the_same_batches[shifted]",
    ),
    Fault(
        "a gain's repeats without what processes differ by",
        "parts/extras/measurements.py",
        "student = STUDENT[min(count, len(STUDENT) + 1) - 2]",
        "student = 0.5",
        "test_benchmark.py::test_figures_repeat_within_their_printed_spread[of processes-3]",
    ),
    Fault(
        "backward belongs to the next layer",
        "parts/extras/profiling.py",
        "numbered[event.sequence_nr] = module",
        "numbered[event.sequence_nr + 1] = module",
        "test_profile.py::test_backward_belongs_to_the_operation_of_its_number",
    ),
    Fault(
        "waiting for data is idle time",
        "parts/extras/profiling.py",
        "data = waited / seconds",
        "data = 0 * waited / seconds",
        "test_profile.py::test_shares_of_a_step",
    ),
    Fault(
        "tune takes what was lucky once",
        "parts/extras/tune.py",
        "gain - 1 <= spread",
        "gain <= 1",
        "test_tune.py::test_the_gain_must_exceed_the_spread[before1-after1-True]",
    ),
    Fault(
        "each trial of a search is the same",
        "parts/extras/search.py",
        "reproducibility.seed * 100_003 + num_trials",
        "reproducibility.seed * 100_003",
        "test_search.py::test_more_trials_go_on_with_the_same_study",
    ),
)

SETTINGS = (
    Fault(
        "a project is looked for where one stands",
        "engine/runs.py",
        'next(above, ".")',
        '"."',
        "test_surroundings.py::test_what_a_person_names_is_meant_from_where_they_stand",
    ),
    Fault(
        "a weaker source wins",
        "config.py",
        'merged |= given.text(key, text, f"${name}")',
        'merged = given.text(key, text, f"${name}") | merged',
        "test_config.py::test_switches",
    ),
    Fault(
        "an unknown setting is never a mistake",
        "engine/sources.py",
        "self.tolerant and not outranks_files(origin)",
        "not outranks_files(origin)",
        "test_config.py::test_settings_of_a_part_that_was_taken_away",
    ),
    Fault(
        "a word in a docstring makes a part of the settings",
        "engine/plugins.py",
        "if name in source and name in definitions(source):",
        "if name in source:",
        "test_config.py::test_a_section_in_a_hook_is_a_section_like_any_other",
    ),
    Fault(
        "a phase outranks the command line",
        "config.py",
        "if key not in merged or not outranks_files(merged[key].origin):",
        "if True:",
        "test_config.py::test_phases_stand_between_file_and_environment",
    ),
)

# The first of each family is tried in `make test`, all of them in `make test-all`.
SAME = "test_script.py::test_losses_evaluations_and_weights_are_those_of_the_package"
SCRIPTS = (
    Fault(
        "a script's step divides by the micro-batches",
        "parts/script/timeseries/train.py",
        "divisor = step_targets / fraction",
        "divisor = step_targets / settings.gradient_accumulation_steps / fraction",
        SAME + "[3-timeseries]",
    ),
    Fault(
        "a script shuffles every epoch alike",
        "parts/script/llm/train.py",
        "RandomState([settings.seed, epoch])",
        "RandomState([settings.seed, 0])",
        SAME + "[1-llm]",
    ),
    Fault(
        "a script loses its random state",
        "parts/script/timeseries/train.py",
        "generator.set_state(state.cpu())",
        "state.cpu()",
        "test_script.py::test_resumes_after_a_kill_at_a_random_point[0-timeseries]",
    ),
    Fault(
        "a script saves for a signal and ends for a later one",
        "parts/script/timeseries/train.py",
        "    while not is_over:\n",
        "    while not (is_over or signals):\n",
        "test_script.py::test_a_signal_right_after_the_question_for_it_loses_no_step",
    ),
)

FAMILIES = {
    "hooks and rows": HOOKS,
    "check": CHECK,
    "examples and the report": PICTURES,
    "weights": WEIGHTS,
    "the step": STEP,
    "number formats": FORMATS,
    "frameworks": FRAMEWORKS,
    "trackers": TRACKERS,
    "learning rates": RATES,
    "order and loaders": ORDERS,
    "evaluation": EVALUATIONS,
    "runs and checkpoints": RUNS,
    "several processes": PROCESSES,
    "the workload": WORKLOADS,
    "the workload seq2seq": SEQ2SEQ,
    "the workload graph": GRAPH,
    "scripts": SCRIPTS,
    "the machine, estimates, export": MACHINE,
    "measuring": MEASURING,
    "settings": SETTINGS,
}
FAULTS = [fault for family in FAMILIES.values() for fault in family]
